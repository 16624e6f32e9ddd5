"""Metrics of the corrections, and of the gap between the engine's and the trainer's distribution.

Shapes: N response tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workers.trainer.losses.importance import effective_sample_size
from workers.trainer.losses.ratios import log_ratio, nonfinite


def mismatch_metrics(
    trained_logprobs_N: torch.Tensor, rollout_logprobs_N: torch.Tensor, importance_weights_N: torch.Tensor
) -> dict[str, float]:
    """How far the rollout policy is from the trained policy, before the update.

    `mismatch_kl` is the k3 estimate E[exp(d) - 1 - d] of KL(rollout, trained) in nats, `logprob_gap_p99` the
    99th percentile of |d|; `importance_weight/*` are the weights that the loss uses, `ess` their effective
    sample size as a share of the tokens. Tokens whose d is not finite are left out. All 0 without tokens.
    """
    is_known_N = ~nonfinite(trained_logprobs_N, rollout_logprobs_N)
    d_N = log_ratio(trained_logprobs_N, rollout_logprobs_N)[is_known_N]
    importance_weights_N = importance_weights_N[is_known_N]
    if not len(d_N):
        d_N = importance_weights_N = d_N.new_zeros(1)
    return {
        "mismatch_kl": _kl(d_N),
        "logprob_gap_p99": d_N.abs().kthvalue(max(1, round(0.99 * len(d_N)))).values.item(),
        "importance_weight/mean": importance_weights_N.mean().item(),
        "importance_weight/max": importance_weights_N.max().item(),
        "importance_weight/ess": effective_sample_size(importance_weights_N),
    }


def engine_metrics(
    trained_logprobs_N: torch.Tensor,
    rollout_logprobs_N: torch.Tensor,
    entropy_N: torch.Tensor,
    *,
    is_fresh_N: torch.Tensor,
) -> dict[str, float]:
    """Estimates of how the engine's distribution differs from the trainer's, each with its standard error.

    With d = trained - rollout logprob: E[exp d] over sampled tokens is the probability that the trainer gives
    to all tokens that can be sampled, whatever the age of the tokens, so `engine/cut` = 1 - mean(exp d) is
    the share that top-k, top-p or a mask cuts off, and 0 otherwise.

    For tokens of the current weights (`is_fresh_N`), an engine at another temperature has log p of the power
    beta of ours: d = (1 - beta)(log p + H) up to second-order terms, H being the entropy. So the slope of d
    over log p + H gives beta, whichever tokens were selected; rounding, which does not depend on log p, adds
    error but no slope. `engine/temperature` is 1 / beta, 1 where both agree. log p is the mean of both
    sides', so that the rounding of neither counts twice. `engine/fresh_kl` is `mismatch_kl` of these tokens
    alone: only rounding, unless the engine has other weights. Left out with fewer than 3 such tokens.
    """
    is_known_N = ~nonfinite(trained_logprobs_N, rollout_logprobs_N)
    d_N = log_ratio(trained_logprobs_N, rollout_logprobs_N)[is_known_N].double()
    if len(d_N) < 2:
        return {}
    weights_N = d_N.exp()
    found = {
        "engine/cut": 1 - weights_N.mean().item(),
        "engine/cut_error": weights_N.std().item() / math.sqrt(len(d_N)),
    }
    logprobs_N = (trained_logprobs_N + rollout_logprobs_N)[is_known_N].double() / 2
    is_fresh_N = is_fresh_N[is_known_N]
    return found | _temperature(d_N[is_fresh_N], (logprobs_N + entropy_N[is_known_N])[is_fresh_N])


def _temperature(d_N: torch.Tensor, surprise_N: torch.Tensor) -> dict[str, float]:
    """The engine's temperature relative to the trainer's, by least squares, and the KL on these tokens."""
    if len(d_N) < 3:
        return {}
    x_N, y_N = surprise_N - surprise_N.mean(), d_N - d_N.mean()
    spread = x_N.square().sum().item()
    if not spread > 0:
        return {}
    found = {"engine/fresh_kl": _kl(d_N), "engine/fresh_tokens": float(len(d_N))}
    slope = (x_N * y_N).sum().item() / spread
    error = math.sqrt((y_N - slope * x_N).square().sum().item() / (len(d_N) - 2) / spread)
    inverse = 1 - slope / max(0.1, 1 + slope / 2)  # the mean of both logprobs has half of the engine's beta
    if not inverse > 0:
        return found
    return {
        "engine/temperature": 1 / inverse,
        "engine/temperature_error": error / inverse**2,
        **found,
    }


def _kl(d_N: torch.Tensor) -> float:
    """The k3 estimate of KL(rollout, trained), in nats."""
    return (torch.expm1(d_N) - d_N).mean().item()


OF_TOKENS = ("entropy", "clip_ratio", "kl_reference", "critic/clip_ratio")
"""Metrics of an optimizer step that are means over its tokens."""


def means(steps: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """Means over optimizer steps; names in OF_TOKENS are weighted by the steps' `tokens`. 0 without steps."""
    tokens = [step["tokens"] for step in steps]
    return {name: _mean([step[name] for step in steps], tokens, name in OF_TOKENS) for name in names}


def _mean(numbers: Sequence[float], tokens: Sequence[float], is_of_tokens: bool) -> float:
    if not is_of_tokens:
        return sum(numbers) / max(1, len(numbers))
    return math.fsum(map(math.prod, zip(numbers, tokens, strict=True))) / max(1.0, sum(tokens))
