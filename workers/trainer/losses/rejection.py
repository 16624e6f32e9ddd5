"""Rejects tokens that are too far from the policy that sampled them to be trained on.

Invariants: without gradient; never changes the divisor of the loss, which counts all tokens.
Shapes: N response tokens of whole responses (and, for the level `group`, of whole groups).
"""

import math
from typing import Literal, NamedTuple

import torch

from workers.trainer.losses.ratios import LARGEST_LOG_RATIO, Aggregate, kl_estimate, log_ratio, over


class Rejection(NamedTuple):
    """The factor of each token's loss, and the tokens that the rule has rejected or clipped."""

    factors_N: torch.Tensor  # 1 where nothing was rejected or clipped
    rejected_N: torch.Tensor  # bool


def rejection(
    trained_logprobs_N: torch.Tensor,
    rollout_logprobs_N: torch.Tensor,
    *,
    sequences_N: torch.Tensor,
    groups_N: torch.Tensor,
    level: Literal["token", "sequence", "group"],
    action: Literal["mask", "drop", "clip"],
    metric: Literal["ratio", "k1", "k2", "k3"],
    aggregate: Aggregate,
    bounds: tuple[float, float],
) -> Rejection:
    """Reject every unit (`level`) whose metric lies outside `bounds`.

    The metric compares trained and rollout policy per token and is aggregated over the unit: the ratio in log
    space (mean: geometric mean, sum: product), or an estimate of KL(rollout, trained) in nats. `mask` leaves
    the unit out; `drop` also leaves out its container (a token's response, a response's group); `clip` scales
    the unit back to the nearest bound, which has a meaning for the ratio only. Raises: ValueError for `clip`
    with another metric than the ratio.
    """
    if action == "clip" and metric != "ratio":
        raise ValueError(
            f"{metric} cannot be clipped to a bound; expected the metric `ratio`, or mask or drop."
        )
    low, high = bounds
    value_N = log_ratio(trained_logprobs_N, rollout_logprobs_N).detach()
    if metric == "ratio":
        low, high = (math.log(bound) if bound > 0 else -math.inf for bound in bounds)
    else:
        value_N = kl_estimate(value_N, metric)
    if level != "token":
        value_N = over(sequences_N if level == "sequence" else groups_N, value_N, aggregate)
    outside_N = (value_N < low) | (value_N > high)
    if action == "clip":
        held_N = value_N.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)  # as in a response's importance weight
        return Rejection((held_N.clamp(low, high) - held_N).exp(), outside_N)
    if action == "drop" and level != "group":
        container_N = sequences_N if level == "token" else groups_N
        outside_N = over(container_N, outside_N.to(value_N.dtype), "max") > 0
    return Rejection((~outside_N).to(value_N.dtype), outside_N)
