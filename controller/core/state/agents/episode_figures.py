"""What a train step says of the episodes in its batch: turns, tokens given, and numbers that they noted.

Invariant: single-turn runs have no episodes, and no line of theirs has a key of these.
"""

from collections.abc import Iterable, Sequence
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from controller.core.state.groups import Trajectory


class EpisodeFigures(NamedTuple):
    """One episode that is trained."""

    turns: int
    given_tokens: int
    noted: tuple[tuple[str, float], ...]  # by `policy.metric`
    trajectories: int = 1

    @classmethod
    def of(cls, members: "Sequence[Trajectory]", noted: tuple[tuple[str, float], ...]) -> "EpisodeFigures":
        """Of its trajectories that are trained."""
        turns, given = sum(member.turns for member in members), sum(member.given_tokens for member in members)
        return cls(turns, given, noted, len(members))


def episode_metrics(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    """The lines of a step: `agent/NAME` is the mean over the episodes that have noted the name."""
    if not episodes:
        return {}
    turns = [episode.turns for episode in episodes]
    found = {
        "turns/mean": sum(turns) / len(turns),
        "turns/max": max(turns),
        "given_tokens/mean": sum(episode.given_tokens for episode in episodes) / len(episodes),
        "trajectories/mean": sum(episode.trajectories for episode in episodes) / len(episodes),
    }
    return found | {f"agent/{name}": fsum(values) / len(values) for name, values in _by_name(episodes)}


def _by_name(episodes: Iterable[EpisodeFigures]) -> list[tuple[str, list[float]]]:
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.noted:
            found.setdefault(name, []).append(value)
    return sorted(found.items())
