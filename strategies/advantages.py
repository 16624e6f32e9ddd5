"""Rewards of one group to advantages, one per response.

Units: as the reward, or in standard deviations where the group is normalised.
"""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev

EPSILON = 1e-6  # keeps a group without variance at zero advantage instead of dividing by zero

Advantages = Callable[[Sequence[float]], list[float]]


def grpo(rewards: Sequence[float]) -> list[float]:
    """(reward - mean) / (standard deviation + 1e-6), with the sample standard deviation. Source: arXiv
    2402.03300."""
    mean, deviation = fmean(rewards), stdev(rewards) if len(rewards) > 1 else 0.0
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """reward - mean: no division, so easy and hard prompts weigh what they are worth. Source: arXiv
    2503.20783."""
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """reward - mean of the *other* rewards of the group. Source: arXiv 2402.14740."""
    total, others = sum(rewards), max(1, len(rewards) - 1)
    return [reward - (total - reward) / others for reward in rewards]


ADVANTAGES: dict[str, Advantages] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
