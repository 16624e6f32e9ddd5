"""Samples: chooses the groups of a batch that are kept for people to read.

Invariants: a pure function of the batch, the step and the run's seed, so that a replay chooses the same
groups; of each four, two have the widest spread of rewards, one is drawn at random, and one is the oldest. Of
an evaluation, prompts with a reward below the threshold are kept, the lowest rewards first.
"""

import random
from bisect import insort
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from protocol.messages import TrainItem

if TYPE_CHECKING:
    from controller.core.state.groups import Group, Trajectory

MOST_TOKENS = 4 << 20  # on which the trainer reports: 16 MiB in a frame, a quarter of the limit
HELD_OUT = "held out"
TURN = ("spread", "spread", "random", "oldest")


class KeptGroup(NamedTuple):
    """A scored group as far as the core knows it; its tokens are in the payload store."""

    group: int
    why: str  # why it was chosen: spread, random, oldest or HELD_OUT
    items: tuple[TrainItem, ...]
    parts: tuple[tuple[str, tuple[float | None, ...]], ...]  # named rewards, in the order of items


class WorstAnswers:
    """Held-out prompts of an evaluation with a reward below the threshold, at most `most`.

    Their payload is kept until the evaluation ends.
    """

    def __init__(self, most: int = 0) -> None:
        self._most = most
        self._found: list[tuple[float, int, KeptGroup]] = []  # with mean rewards, the lowest first

    def take(self, group: "Group", threshold: float) -> tuple[int, ...]:
        """Consider a scored group; returns the groups whose payload is no longer needed."""
        if not self._most or min(group.rewards, default=threshold) >= threshold:
            return (group.id,)
        places = group.places
        items = tuple([_answer(group, member, places) for member in group.trained])
        insort(self._found, (fmean(group.rewards), group.id, _kept(group, HELD_OUT, items)))
        unneeded = self._found[self._most :]
        del self._found[self._most :]
        return tuple([id for _, id, _ in unneeded])

    @property
    def groups(self) -> tuple[KeptGroup, ...]:
        """The groups to keep."""
        return tuple([one for *_, one in self._found])


def choose(groups: Sequence["Group"], count: int, *, step: int, seed: int) -> list[tuple["Group", str]]:
    """At most `count` of these scored groups, each once, with the reason."""
    dice = random.Random(f"{seed}/samples/{step}")
    left = sorted(groups, key=lambda group: group.id)
    brought = [group.contribute() for group in left]
    spreads, oldest = [one.spread for one in brought], [one.oldest for one in brought]
    chosen: list[tuple[Group, str]] = []
    while left and len(chosen) < count:
        why = TURN[len(chosen) % len(TURN)]
        if why == "spread":
            place = spreads.index(max(spreads))
        elif why == "oldest":
            place = oldest.index(min(oldest))
        else:
            place = dice.choice(range(len(left)))
        chosen.append((left.pop(place), why))
        del spreads[place], oldest[place]
    return chosen


def asked_groups(kept: Sequence[KeptGroup]) -> tuple[int, ...]:
    """The samples on whose tokens the trainer is to report, as many as one report may hold."""
    asked: list[int] = []
    left = MOST_TOKENS
    for one in kept:
        tokens = sum([item.sampled_tokens for item in one.items])
        if tokens <= left:
            asked.append(one.group)
            left -= tokens
    return tuple(sorted(asked))


def kept_groups(groups: Sequence["Group"], *, count: int, step: int, seed: int) -> tuple[KeptGroup, ...]:
    """Samples of a batch of scored groups, for the step that it makes."""
    chosen = choose(groups, count, step=step, seed=seed) if count else []
    return tuple(_kept(group, why, group.contribute().items) for group, why in chosen)


def _kept(group: "Group", why: str, items: tuple[TrainItem, ...]) -> KeptGroup:
    return KeptGroup(group.id, why, items, _parts(group, items))


def _answer(group: "Group", member: "Trajectory", places: Mapping[int, int]) -> TrainItem:
    """The item of a held-out trajectory, which is not trained and has no advantage."""
    response = group.response_of(member)
    return TrainItem(
        group.id,
        member.id.member,
        member.prompt_tokens,
        group.rewards[places[response]],
        0.0,
        member.ending,
        tuple(member.segments),
        response,
    )


def _parts(group: "Group", items: Sequence[TrainItem]) -> tuple[tuple[str, tuple[float | None, ...]], ...]:
    """Named rewards per item; the trajectories of an episode all have those of the episode. None: no such."""
    if not group.episodes:
        return group.reward_parts
    place_of = group.places
    places = [place_of[item.episode] for item in items]
    return tuple((name, tuple(values[place] for place in places)) for name, values in group.reward_parts)
