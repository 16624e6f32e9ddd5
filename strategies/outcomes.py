"""Turns a group's rewards into outcomes: advantages if the group decides them, else the rewards.

Invariants: one outcome per reward, in order; quantities beyond the group (means over the batch, a critic, KL)
are left to the trainer (workers/trainer/losses/advantages.py). Units: those of the reward, or standard
deviations if groups are scaled.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from protocol.settings import TrainerSettings
from strategies.batches.spreads import deviation

EPSILON = 1e-6  # keeps a group without variance at zero advantage instead of dividing by zero
LONE_DIVISOR = 1.0  # of a reward that is compared with no other, and so has no deviation


def mean_of_group(rewards: Sequence[float]) -> list[float]:
    """The mean of the group, for each reward. Source: GRPO (arXiv 2402.03300)."""
    return [fmean(rewards)] * len(rewards)


def mean_of_others(rewards: Sequence[float]) -> list[float]:
    """The mean of the *other* rewards, for each; 0 for a single reward.

    Source: RLOO (arXiv 2402.14740).
    """
    total, others = sum(rewards), max(1, len(rewards) - 1)
    return [(total - reward) / others for reward in rewards]


BASELINES: dict[str, Callable[[Sequence[float]], list[float]]] = {
    "group_mean": mean_of_group,
    "leave_one_out": mean_of_others,
}


def group_advantages(
    rewards: Sequence[float], *, baseline: str, scale: str, lone_divisor: float = LONE_DIVISOR
) -> list[float]:
    """(reward - baseline) / (sample standard deviation + 1e-6); 0 and 1 if they are not the group's.

    A single reward has no deviation and is divided by `lone_divisor`: a group may be left with one episode
    (`agent.on_limit: mask`), and a turn may be reached by one alone.
    """
    compared = [0.0] * len(rewards) if baseline not in BASELINES else BASELINES[baseline](rewards)
    divisor = 1.0
    if scale == "group_std":
        divisor = EPSILON + deviation(rewards) if len(rewards) > 1 else lone_divisor
    return [(reward - expected) / divisor for reward, expected in zip(rewards, compared, strict=True)]


def overlong_penalty(response_tokens: int, *, max_tokens: int, buffer: float, penalty: float) -> float:
    """The amount that is added to a reward for the length of its response.

    0 up to the last `buffer` share of `max_tokens`, then linearly down to -penalty.

    Source: soft overlong punishment of DAPO (arXiv 2503.14476).
    """
    width = buffer * max_tokens
    excess = response_tokens - (max_tokens - width)
    return -penalty * min(1.0, excess / width) if width > 0 and excess > 0 else 0.0


def overlong_penalties(
    response_tokens: Sequence[int], *, settings: TrainerSettings, max_tokens: int
) -> list[float]:
    """The length penalties of a group's responses, as configured in `trainer`."""
    return [
        overlong_penalty(
            tokens, max_tokens=max_tokens, buffer=settings.overlong_buffer, penalty=settings.overlong_penalty
        )
        for tokens in response_tokens
    ]


def outcomes(
    rewards: Sequence[float],
    response_tokens: Sequence[int],
    *,
    settings: TrainerSettings,
    max_tokens: int,
    lone_divisor: float = LONE_DIVISOR,
) -> tuple[float, ...]:
    """The outcomes of one group with the settings of `trainer`, including length penalties.

    `lone_divisor`: see `group_advantages`.
    """
    penalties = overlong_penalties(response_tokens, settings=settings, max_tokens=max_tokens)
    penalized = [reward + penalty for reward, penalty in zip(rewards, penalties, strict=True)]
    baseline, scale = settings.baseline, settings.advantage_scale
    return tuple(group_advantages(penalized, baseline=baseline, scale=scale, lone_divisor=lone_divisor))


class TurnsView(NamedTuple):
    """The turns of a group's episodes, each of which gets an advantage."""

    rewards: tuple[tuple[float, ...], ...]
    """Per episode, the rewards of its turns in order.

    A reward for the whole episode counts at its last turn, and so does a penalty for its length.
    """
    discount: float  # `agent.turn_discount`
    baseline: str  # `trainer.baseline`
    scale: str  # `trainer.advantage_scale`
    lone_divisor: float = LONE_DIVISOR  # see `group_advantages`


def by_returns(view: TurnsView) -> list[list[float]]:
    """The advantage of each turn of each episode of a group: its return, compared over the same turns.

    The return of a turn is its reward plus `discount` times the return of the next turn. A turn that only one
    episode has reached is compared with no other, so its advantage is 0 with `group_mean`, and its return
    with `leave_one_out`.
    """
    returns = [_returns(rewards, view.discount) for rewards in view.rewards]
    found: list[list[float]] = [[] for _ in returns]
    for turn in range(max(map(len, returns), default=0)):
        there = [place for place, one in enumerate(returns) if turn < len(one)]
        compared = group_advantages(
            [returns[place][turn] for place in there],
            baseline=view.baseline, scale=view.scale, lone_divisor=view.lone_divisor,
        )  # fmt: skip
        for place, advantage in zip(there, compared, strict=True):
            found[place].append(advantage)
    return found


TurnAdvantages = Callable[[TurnsView], Sequence[Sequence[float]]]
TURN_ADVANTAGES: dict[str, TurnAdvantages] = {"returns": by_returns}


def _returns(rewards: Sequence[float], discount: float) -> list[float]:
    found: list[float] = []
    total = 0.0
    for reward in reversed(rewards):
        total = reward + discount * total
        found.append(total)
    return found[::-1]
