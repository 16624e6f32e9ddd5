"""Ratios of two policies at the same tokens, and their aggregates over a response.

Invariants: log-ratios are taken in float32 or better, whatever the model computes in; one that is not finite
becomes 0, which is a ratio of 1, and `nonfinite` reports it.

Shapes: N response tokens of whole responses, concatenated without padding; an index [N] says which token
belongs to which response (or group): 0, 1, ... in any order.
"""

from typing import Literal

import torch

Aggregate = Literal["sum", "mean", "max"]
LARGEST_LOG_RATIO = 20.0  # exp(20) = 5e8 is past every clip and cap, and still far from overflow when squared


def log_ratio(numerator_N: torch.Tensor, denominator_N: torch.Tensor) -> torch.Tensor:
    """Difference of logprobs, 0 where it is not finite, within ±20. Shape: [N]; units: natural log."""
    dtype = torch.promote_types(numerator_N.dtype, torch.float32)
    difference_N = numerator_N.to(dtype) - denominator_N.to(dtype)
    difference_N = torch.where(torch.isfinite(difference_N), difference_N, torch.zeros_like(difference_N))
    return difference_N.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def nonfinite(numerator_N: torch.Tensor, denominator_N: torch.Tensor) -> torch.Tensor:
    """Whether `log_ratio` replaces a token's log-ratio by 0: bool [N]."""
    return ~torch.isfinite(numerator_N - denominator_N)


def over(index_N: torch.Tensor, values_N: torch.Tensor, aggregate: Aggregate) -> torch.Tensor:
    """Each token's value replaced by the sum, mean or maximum over the tokens of its response: [N]."""
    if not len(values_N):
        return values_N
    reduce = {"sum": "sum", "mean": "mean", "max": "amax"}[aggregate]
    units = values_N.new_zeros(int(index_N.max()) + 1)
    return units.scatter_reduce(0, index_N, values_N, reduce, include_self=False)[index_N]


def kl_estimate(log_ratio_N: torch.Tensor, estimator: Literal["k1", "k2", "k3"]) -> torch.Tensor:
    """Per-token estimate, in nats, of KL(p, q) from tokens of p, given log q - log p: [N], with gradient.

    k1 = -d is unbiased and has a large variance; k2 = d²/2 has the right gradient where q is fixed; k3 =
    exp(d) - 1 - d is unbiased and never negative. Source: Schulman, Approximating KL divergence (2020).
    """
    if estimator == "k1":
        return -log_ratio_N
    if estimator == "k2":
        return log_ratio_N.square() / 2
    return torch.expm1(log_ratio_N) - log_ratio_N
