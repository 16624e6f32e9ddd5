"""Metrics of a train step about the episodes in its batch: turns, tokens, times, and noted numbers.

Invariant: runs without agents have no episodes, and their lines have none of these keys.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import TYPE_CHECKING, NamedTuple, get_args

from protocol.messages.pieces import EpisodeEnding, ForkCause

if TYPE_CHECKING:
    from controller.core.state.agents.episodes import Episode
    from controller.core.state.groups import Trajectory


CAUSES: tuple[ForkCause, ...] = get_args(ForkCause)[1:]
ENDINGS = (*get_args(EpisodeEnding), "timeout")
FATES = ("retried", "diverged", "replayed")


class EpisodeFigures(NamedTuple):
    """Figures of one trained episode."""

    turns: int
    given_tokens: int
    noted: tuple[tuple[str, float], ...]  # by `policy.metric`
    trajectories: int = 1
    sampled_tokens: int = 0
    environment_s: float = 0.0  # in which it waited for its environment
    policy_s: float = 0.0  # in which it waited for the policy
    overhead_ms: tuple[float, ...] = ()  # of each turn
    forks: tuple[ForkCause, ...] = ()

    @classmethod
    def of(cls, members: "Sequence[Trajectory]", episode: "Episode") -> "EpisodeFigures":
        """Figures of an episode whose trained trajectories are `members`."""
        turns, given = sum(member.turns for member in members), sum(member.given_tokens for member in members)
        return cls(
            turns, given, episode.noted, len(members), sum(member.response_tokens for member in members),
            *episode.waited, episode.overhead_ms, episode.forks,
        )  # fmt: skip


def episode_metrics(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    """Metrics of a step; `agent/NAME` is the mean over the episodes that noted NAME."""
    if not episodes:
        return {}
    turns = [episode.turns for episode in episodes]
    found = {
        "turns/mean": sum(turns) / len(turns),
        "turns/max": max(turns),
        "given_tokens/mean": sum(episode.given_tokens for episode in episodes) / len(episodes),
        "trajectories/mean": sum(episode.trajectories for episode in episodes) / len(episodes),
        "episode/sampled_tokens/mean": sum(episode.sampled_tokens for episode in episodes) / len(episodes),
        **_times(episodes),
    }
    noted = {f"agent/{name}": fsum(values) / len(values) for name, values in _by_name(episodes)}
    return found | noted | _forks(episodes)


class EpisodeCounts:
    """Counts fates and endings of episodes between two lines, evaluations included."""

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}

    def take(self, counts: Mapping[str, int]) -> dict[str, object]:
        """Counts since the last call. `counts`: totals of the whole run."""
        failed = sum(count for name, count in counts.items() if name.startswith("episodes/failed_"))
        names = (*(f"episodes/{fate}" for fate in FATES), *(f"ending/{ending}" for ending in ENDINGS))
        now = {"episodes/failed": failed} | {name: counts.get(name, 0) for name in names}
        found: dict[str, object] = {name: count - self._before.get(name, 0) for name, count in now.items()}
        self._before = now
        return found


def _forks(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    """Forked conversations per episode, by cause; empty if no episode has any."""
    causes = Counter(cause for episode in episodes for cause in episode.forks)
    return {f"agent/forks/{cause}": causes[cause] / len(episodes) for cause in CAUSES if causes}


def _times(episodes: Sequence[EpisodeFigures]) -> dict[str, float]:
    """Where the time of episodes went, and the overhead of turns beyond queue and engine."""
    environment_s = fsum(episode.environment_s for episode in episodes)
    whole_s = environment_s + fsum(episode.policy_s for episode in episodes)
    found = {"environment/wait_s": environment_s / len(episodes)}
    if whole_s:
        found["environment/share"] = environment_s / whole_s
    return found | overhead_figures(each for episode in episodes for each in episode.overhead_ms)


def overhead_figures(overhead_ms: Iterable[float]) -> dict[str, float]:
    """Quantiles of the overhead of turns beyond queue and engine; empty if it is unknown."""
    found = sorted(overhead_ms)
    places = {share: min(len(found) - 1, share * len(found) // 100) for share in (50, 99)}
    return {f"turn/overhead_ms/p{share}": found[place] for share, place in places.items()} if found else {}


def _by_name(episodes: Iterable[EpisodeFigures]) -> list[tuple[str, list[float]]]:
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.noted:
            found.setdefault(name, []).append(value)
    return sorted(found.items())
