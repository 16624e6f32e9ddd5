"""Which groups of a batch are kept for people to read, and what is told of them.

Invariants: a pure function of the batch, the step and the run's seed, so that a replay names the same groups;
of each four, two are those with the widest spread of rewards, one is drawn by a seed, and one is the oldest.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from controller.core.state.groups import Group
from protocol.messages import TrainItem

MOST_TOKENS = 4 << 20  # of which a trainer reports: a frame of 16 MiB, a quarter of what one may have
TURN = ("spread", "spread", "random", "oldest")


class KeptGroup(NamedTuple):
    """A group that was trained, as far as the core knows it; its tokens are in the payload store."""

    group: int
    why: str  # spread, random or oldest: what it was chosen for
    items: tuple[TrainItem, ...]
    parts: tuple[tuple[str, tuple[float, ...]], ...]  # of the rewards, by name, in the order of items


def choose(groups: Sequence[Group], count: int, *, step: int, seed: int) -> list[tuple[Group, str]]:
    """At most `count` of these scored groups, each once, with what it was chosen for."""
    dice = random.Random(f"{seed}/samples/{step}")
    left = sorted(groups, key=lambda group: group.id)
    spreads = {group.id: spread(group.rewards) for group in left}
    chosen: list[tuple[Group, str]] = []
    while left and len(chosen) < count:
        why = TURN[len(chosen) % len(TURN)]
        if why == "spread":
            found = max(left, key=lambda group: spreads[group.id])
        elif why == "oldest":
            found = min(left, key=lambda group: group.oldest_token_version())
        else:
            found = dice.choice(left)
        left.remove(found)
        chosen.append((found, why))
    return chosen


def spread(rewards: Sequence[float]) -> float:
    """Their variance, exact but for one rounding at the end: every machine finds the same groups.

    It is what `statistics.pvariance` gives, in a twentieth of its time: a batch may have thousands of groups.
    """
    ratios = [reward.as_integer_ratio() for reward in rewards]
    unit = max([denominator for _, denominator in ratios])  # the others divide it: all are powers of two
    whole = [numerator * (unit // denominator) for numerator, denominator in ratios]
    count, total = len(whole), sum(whole)
    return (count * sum([one * one for one in whole]) - total * total) / (count * unit) ** 2


def asked_groups(
    groups: Sequence[Group], items: Sequence[TrainItem], *, count: int, step: int, seed: int
) -> tuple[int, ...]:
    """Those that will be kept, as far as one report may say of their tokens what the trainer found."""
    sizes = Counter[int]()
    for item in items:
        sizes[item.group] += item.sampled_tokens
    asked: list[int] = []
    left = MOST_TOKENS
    for group, _ in choose(groups, count, step=step, seed=seed) if count else ():
        if sizes[group.id] <= left:
            asked.append(group.id)
            left -= sizes[group.id]
    return tuple(sorted(asked))


def kept_groups(
    groups: Sequence[Group], items: Sequence[TrainItem], *, count: int, step: int, seed: int
) -> tuple[KeptGroup, ...]:
    """What to keep of the batch that these groups and items are, for the step that it made."""
    chosen = choose(groups, count, step=step, seed=seed) if count else []
    if not chosen:
        return ()
    by_group: dict[int, list[TrainItem]] = {group.id: [] for group, _ in chosen}
    for item in items:
        if item.group in by_group:
            by_group[item.group].append(item)
    return tuple(
        KeptGroup(group.id, why, tuple(by_group[group.id]), _parts(group, by_group[group.id]))
        for group, why in chosen
    )


def _parts(group: Group, items: Sequence[TrainItem]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Each trajectory of an episode has those of the episode."""
    if not group.episodes:
        return group.reward_parts
    place_of = group.places
    places = [place_of[item.episode] for item in items]
    return tuple((name, tuple(values[place] for place in places)) for name, values in group.reward_parts)
