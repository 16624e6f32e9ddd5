"""Policy losses: the loss of each token, and from it the loss of a mini-batch.

Invariants: a loss sees whole responses and returns one number per token; importance weights and token weights
are applied afterwards by `policy_loss`, in the same way for every loss. Only `logprobs_N` and `entropy_N`
carry gradients.

Shapes: N response tokens of a micro-batch, concatenated without padding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from protocol.settings import TrainerSettings
from workers.trainer.losses.ratios import kl_estimate, log_ratio, nonfinite, over


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a loss gets. All [N]; logprobs in nats at the sampling temperature."""

    logprobs: torch.Tensor  # of the policy that is trained; with gradient
    entropy: torch.Tensor  # of its distribution; with gradient if `trainer.entropy_coefficient` is not 0
    proximal_logprobs: torch.Tensor  # of the weights just before this update: the centre of the trust region
    rollout_logprobs: torch.Tensor  # of the engine that sampled the token
    reference_logprobs: torch.Tensor | None  # of the initial model; None without a KL coefficient
    advantages: torch.Tensor
    importance_weights: torch.Tensor  # applied by the engine
    token_weights: torch.Tensor  # applied by the engine; 0 where a token is left out
    sequences: torch.Tensor  # int64: which response of the micro-batch a token belongs to
    policy_versions: torch.Tensor  # int64: the version that sampled it
    settings: TrainerSettings


class TokenLoss(NamedTuple):
    """The result of a built-in loss; a user's loss may return `loss_N` alone."""

    loss_N: torch.Tensor
    clipped_N: torch.Tensor  # bool: where a bound is active


Loss = Callable[[Tokens], TokenLoss | torch.Tensor]


class PolicyLoss(NamedTuple):
    """The loss of some tokens, and the sums that metrics are made of.

    Scalars; only the loss has a gradient.
    """

    loss: torch.Tensor  # this micro-batch's share of the mini-batch's loss
    clipped: torch.Tensor  # tokens where a bound is active
    nonfinite: torch.Tensor  # tokens whose ratio of policies is not finite
    kl: torch.Tensor  # sum over tokens of the estimated KL to the reference, in nats


def _ratio(tokens: Tokens) -> torch.Tensor:
    return log_ratio(tokens.logprobs, tokens.proximal_logprobs)


def _trust_region(ratio_N: torch.Tensor, tokens: Tokens) -> TokenLoss:
    """-min(u A, clip(u, 1 - low, 1 + high) A), and for A < 0 no more than `dual_clip` |A|."""
    options, advantages_N = tokens.settings, tokens.advantages
    plain_N = ratio_N * advantages_N
    bounded_N = ratio_N.clamp(1 - options.clip_low, 1 + options.clip_high) * advantages_N
    objective_N, clipped_N = torch.minimum(plain_N, bounded_N), bounded_N < plain_N
    if options.dual_clip:
        floor_N = torch.where(advantages_N < 0, options.dual_clip * advantages_N, -torch.inf)
        clipped_N = clipped_N | (floor_N > objective_N)
        objective_N = torch.maximum(objective_N, floor_N)
    return TokenLoss(-objective_N, clipped_N)


def ppo(tokens: Tokens) -> TokenLoss:
    """Clip each token's ratio.

    Source: arXiv 1707.06347; asymmetric bounds from DAPO (arXiv 2503.14476); dual clip from arXiv 1912.09729;
    decoupled centre from AReaL (arXiv 2505.24298) section 5.2.
    """
    return _trust_region(_ratio(tokens).exp(), tokens)


def gspo(tokens: Tokens) -> TokenLoss:
    """Clip each response's ratio, the geometric mean over its tokens. Source: arXiv 2507.18071."""
    return _trust_region(over(tokens.sequences, _ratio(tokens), "mean").exp(), tokens)


def cispo(tokens: Tokens) -> TokenLoss:
    """Loss -clip(u) A logprob, the clipped ratio taken as a constant: no token loses its gradient.

    Source: MiniMax-M1 (arXiv 2506.13585).
    """
    options = tokens.settings
    ratio_N = _ratio(tokens).detach().exp()
    weight_N = ratio_N.clamp(1 - options.clip_low, 1 + options.clip_high)
    logprobs_N = torch.where(torch.isfinite(tokens.logprobs), tokens.logprobs, 0.0)
    return TokenLoss(-weight_N * tokens.advantages * logprobs_N, weight_N != ratio_N)


def m2po(tokens: Tokens) -> TokenLoss:
    """-u A, without the tokens that make the second moment of the log ratio too large; nothing is clipped.

    Of the micro-batch's tokens, those farthest from the policy that sampled them are left out, until the mean
    square of the remaining log ratios is at most `trainer.second_moment`. They still count in the divisor of
    the loss. Source: M2PO (arXiv 2510.01161), which takes the mean over the batch; the authors' code takes it
    over tokens that a clip could act on, and clips these.
    """
    away_N = log_ratio(tokens.logprobs, tokens.rollout_logprobs).detach().square()
    ordered_N, places_N = away_N.sort()
    counts_N = torch.arange(1, len(away_N) + 1, dtype=away_N.dtype, device=away_N.device)
    is_far_N = torch.zeros_like(away_N, dtype=torch.bool)
    is_far_N[places_N] = ordered_N.cumsum(0) / counts_N > tokens.settings.second_moment
    loss_N = -_ratio(tokens).exp() * tokens.advantages
    return TokenLoss(torch.where(is_far_N, torch.zeros_like(loss_N), loss_N), is_far_N)


def reinforce(tokens: Tokens) -> TokenLoss:
    """-u A without any bound: the policy gradient, exact also where the mini-batches before have moved u."""
    ratio_N = _ratio(tokens).exp()
    return TokenLoss(-ratio_N * tokens.advantages, torch.zeros_like(ratio_N, dtype=torch.bool))


def likelihood(tokens: Tokens) -> torch.Tensor:
    """-A logprob, whichever policy sampled the token: with A = 1 the loss of supervised training, in nats."""
    return -tokens.advantages * tokens.logprobs


LOSSES: dict[str, Loss] = {
    "ppo": ppo,
    "gspo": gspo,
    "cispo": cispo,
    "m2po": m2po,
    "reinforce": reinforce,
    "likelihood": likelihood,
}


def policy_loss(tokens: Tokens, loss: Loss) -> PolicyLoss:
    """The loss of these tokens, summed.

    Per token: weight * (importance weight * loss + KL coefficient * KL - entropy coefficient * entropy).

    Sum over micro-batches and ranks to get the mini-batch's loss.
    """
    options, result = tokens.settings, loss(_with_numbers(tokens))
    loss_N, clipped_N = result if isinstance(result, tuple) else (result, torch.zeros_like(result))
    cost_N = loss_N * tokens.importance_weights
    kl_N = torch.zeros_like(cost_N)
    if tokens.reference_logprobs is not None:
        kl_N = kl_estimate(log_ratio(tokens.reference_logprobs, tokens.logprobs), options.kl_estimator)
        if options.kl_in == "loss":
            cost_N = cost_N + options.kl_coefficient * kl_N
    if options.entropy_coefficient:
        cost_N = cost_N - options.entropy_coefficient * tokens.entropy
    return PolicyLoss(
        loss=(cost_N * tokens.token_weights).sum(),
        clipped=clipped_N.sum(),
        nonfinite=_without_ratio(tokens).sum(),
        kl=kl_N.detach().sum(),
    )


def _without_ratio(tokens: Tokens) -> torch.Tensor:
    """Whether trained, proximal and rollout policy lack a finite ratio: bool [N]."""
    return nonfinite(tokens.logprobs, tokens.proximal_logprobs) | nonfinite(
        tokens.logprobs, tokens.rollout_logprobs
    )


def _with_numbers(tokens: Tokens) -> Tokens:
    """The tokens as a loss gets them, with finite numbers in place of logprobs that are not finite.

    A rollout logprob that is not finite becomes the token's trained logprob, and so does a proximal one that
    was computed from it. But in supervised training such a token has weight 0, and here no gradient: else a
    loss that looks at whole responses, as `gspo` does, would train it through the others.
    """
    is_lost_N = ~torch.isfinite(tokens.rollout_logprobs)
    own_N, proximal_N = tokens.logprobs.detach(), tokens.proximal_logprobs
    return replace(
        tokens,
        logprobs=torch.where(is_lost_N & (tokens.token_weights == 0), own_N, tokens.logprobs),
        rollout_logprobs=torch.where(is_lost_N, own_N, tokens.rollout_logprobs),
        proximal_logprobs=torch.where(is_lost_N & ~torch.isfinite(proximal_N), own_N, proximal_N),
    )
