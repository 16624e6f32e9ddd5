"""What a train step says of the episodes in its batch: turns, tokens given, and numbers that they noted.

Invariant: single-turn runs have no episodes, and no line of theirs has a key of these.
"""

from collections.abc import Iterable, Sequence
from math import fsum
from typing import NamedTuple


class EpisodeFigures(NamedTuple):
    """One episode that is trained."""

    turns: int
    given_tokens: int
    noted: tuple[tuple[str, float], ...]  # by `policy.metric`


def episode_metrics(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    """The lines of a step: `agent/NAME` is the mean over the episodes that have noted the name."""
    if not episodes:
        return {}
    turns = [episode.turns for episode in episodes]
    found = {
        "turns/mean": sum(turns) / len(turns),
        "turns/max": max(turns),
        "given_tokens/mean": sum(episode.given_tokens for episode in episodes) / len(episodes),
    }
    return found | {f"agent/{name}": fsum(values) / len(values) for name, values in _by_name(episodes)}


def _by_name(episodes: Iterable[EpisodeFigures]) -> list[tuple[str, list[float]]]:
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.noted:
            found.setdefault(name, []).append(value)
    return sorted(found.items())
