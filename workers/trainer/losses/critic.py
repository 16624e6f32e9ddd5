"""The critic's loss. Shapes: N response tokens; values and returns in units of the reward."""

from typing import NamedTuple

import torch

ROUNDING = 1e-5  # of returns, as a share of their largest summand: float32, over thousands of tokens


class ValueLoss(NamedTuple):
    """The loss of some tokens (scalar), and the number of them where the clip is active (scalar)."""

    loss: torch.Tensor
    clipped: torch.Tensor


def value_loss(
    values_N: torch.Tensor,
    old_values_N: torch.Tensor,
    returns_N: torch.Tensor,
    *,
    token_weights_N: torch.Tensor,
    clip: float,
) -> ValueLoss:
    """The larger of two half squared errors: of the value, and of it held within `clip` of the old one.

    Sum over micro-batches and ranks; only `values_N` carries a gradient. Source: PPO's reference code.
    """
    plain_N = (values_N - returns_N).square()
    bounded_N = (old_values_N + (values_N - old_values_N).clamp(-clip, clip) - returns_N).square()
    worst_N = torch.maximum(plain_N, bounded_N)
    return ValueLoss((worst_N * token_weights_N).sum() / 2, (bounded_N > plain_N).sum())


def explained_variance(values_N: torch.Tensor, returns_N: torch.Tensor) -> float:
    """1 - var(return - value) / var(return): 1 for a perfect critic, 0 for one that knows only the mean.

    Also 0 if returns differ by no more than their rounding: then there is nothing to explain.
    """
    values_N, returns_N = values_N.double(), returns_N.double()
    deviation = returns_N.std(correction=0).item() if len(returns_N) else 0.0
    if deviation <= ROUNDING * _largest(values_N, returns_N):
        return 0.0
    return 1 - (returns_N - values_N).var(correction=0).item() / deviation**2


def _largest(*tensors: torch.Tensor) -> float:
    return max((tensor.abs().max().item() for tensor in tensors if len(tensor)), default=0.0)


def value_metrics(values_N: torch.Tensor | None, returns_N: torch.Tensor) -> dict[str, float]:
    """The critic's metrics for metrics.jsonl; empty without a critic."""
    if values_N is None:
        return {}
    return {"critic/explained_variance": explained_variance(values_N, returns_N)}
