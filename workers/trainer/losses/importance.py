"""Importance weights of tokens, which correct for the difference between the rollout and the proximal policy.

Invariants: weights carry no gradient; they are applied whatever filters or rejection leave out.
Shapes: N response tokens of whole responses. Units: natural log; bounds are ratios.
"""

from typing import Literal, NamedTuple

import torch

from workers.trainer.losses.ratios import LARGEST_LOG_RATIO, log_ratio, over


class Importance(NamedTuple):
    """Weights, and the tokens at which a bound has changed them."""

    weights_N: torch.Tensor
    bounded_N: torch.Tensor  # bool


def importance_weights(
    trained_logprobs_N: torch.Tensor,
    rollout_logprobs_N: torch.Tensor,
    sequences_N: torch.Tensor,
    *,
    advantages_N: torch.Tensor,
    kind: Literal["truncate", "mask", "taper", "none"],
    level: Literal["token", "sequence"],
    low: float,
    cap: float,
) -> Importance:
    """Importance weights trained / rollout per token, or per response, as the product over its tokens.

    `truncate` holds weights within [low, cap] (AReaL, arXiv 2505.24298; truncated importance sampling);
    `mask` sets weights outside to 0 (IcePop, arXiv 2510.18855); `taper` holds the weights of negative
    advantages within [low, 1], whatever `cap` is, and is 1 for the others (TOPR, arXiv 2503.14286); `none`
    is 1.
    Raises: ValueError if the shapes differ, cap < 1 or low is not within [0, 1].
    """
    if trained_logprobs_N.shape != rollout_logprobs_N.shape or cap < 1 or not 0 <= low <= 1:
        raise ValueError(
            f"Got {tuple(trained_logprobs_N.shape)} trained and {tuple(rollout_logprobs_N.shape)} rollout "
            f"logprobs with bounds {low} and {cap}; expected equal shapes, a low bound within 0 and 1, and a "
            "cap of at least 1."
        )
    difference_N = log_ratio(trained_logprobs_N, rollout_logprobs_N).detach()
    if kind == "none":
        return Importance(torch.ones_like(difference_N), torch.zeros_like(difference_N, dtype=torch.bool))
    if level == "sequence":
        difference_N = over(sequences_N, difference_N, "sum").clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio_N = difference_N.exp()
    if kind == "taper":
        is_worse_N = advantages_N < 0
        weights_N = torch.where(is_worse_N, ratio_N.clamp(low, 1.0), torch.ones_like(ratio_N))
        return Importance(weights_N, is_worse_N & ((ratio_N < low) | (ratio_N > 1.0)))
    outside_N = (ratio_N < low) | (ratio_N > cap)
    if kind == "truncate":
        return Importance(ratio_N.clamp(low, cap), outside_N)
    return Importance(torch.where(outside_N, torch.zeros_like(ratio_N), ratio_N), outside_N)


def effective_sample_size(weights_N: torch.Tensor) -> float:
    """(sum w)² / (N sum w²): the share of the tokens that equal weights would need for the same variance."""
    squares = weights_N.square().sum().item() * len(weights_N)
    return weights_N.sum().item() ** 2 / squares if squares > 0 else 0.0


def loglinear_proximal(
    logprobs_N: torch.Tensor,
    rollout_logprobs_N: torch.Tensor,
    policy_versions_N: torch.Tensor,
    *,
    train_version: int,
) -> torch.Tensor:
    """Proximal logprobs without a forward pass: interpolated between rollout and trained policy, by version.

    A token of version v lies (train_version - v) / (train_version + 1 - v) of the way, so a fresh token has
    the rollout logprob; the rest of the way is left to the clip. Shape: [N], without gradient.
    Source: AReaL (`prox_logp_method: loglinear` of its released code).
    """
    age_N = (train_version - policy_versions_N).clamp(min=0).to(rollout_logprobs_N.dtype)
    share_N = age_N / (age_N + 1)
    return rollout_logprobs_N + share_N * log_ratio(logprobs_N.detach(), rollout_logprobs_N)
