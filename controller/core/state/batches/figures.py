"""Figures of a batch for the line of its step, counted a few groups per event while the trainer works.

Invariants: nothing here decides; the figures do not depend on when they are counted and summed up, so an
image of the core holds them counted, and not summed up.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import fsum, sqrt
from typing import NamedTuple

from controller.core.state.agents.episode_figures import EpisodeFigures, episode_metrics
from controller.core.state.batches.contributions import Contribution
from strategies.outcomes import EPSILON

AT_ONCE = 16  # groups at each event: 0.1 ms, and 2,000 groups are counted within 130 events


class _Groups(NamedTuple):
    """Figures of the counted groups, in columns, so that thousands are summed up at once."""

    sources: list[int]
    responses: list[int]
    tokens: list[int]
    reward_sums: list[float]
    reward_squares: list[float]


class BatchFigures:
    """Figures of a batch from ids, lengths, versions and rewards alone."""

    def __init__(
        self, contributions: Iterable[Contribution], train_version: int, sources: Sequence[str] = ()
    ) -> None:
        """`sources`: names of the sources of prompts, where there are several."""
        self._left = deque(contributions)
        self._train_version, self._sources = train_version, sources
        self._groups = _Groups([], [], [], [], [])
        self._lengths, self._ages = Counter[int](), Counter[int]()
        self._cut = self._partial = self._trajectories = 0
        self._parts: dict[str, list[tuple[float, int]]] = {}  # by name, of each group
        self._episodes: list[EpisodeFigures] = []
        self._line: Mapping[str, object] | None = None  # all figures, once they are summed up

    @property
    def left(self) -> int:
        """Number of groups that are not counted yet."""
        return len(self._left)

    def go_on(self) -> None:
        """Count the next few groups, or sum up, once all are counted."""
        if self._left:
            for _ in range(min(AT_ONCE, len(self._left))):
                self._count(self._left.popleft())
        elif self._line is None and self._groups.responses:
            self._line = self._summed_up()

    def settle(self) -> None:
        """Become what does not depend on the events since: all groups counted, nothing summed up."""
        self.finish()
        self._line = None

    def finish(self) -> None:
        """Count all groups that are left."""
        while self._left:
            self._count(self._left.popleft())

    @property
    def tokens(self) -> int:
        """Sampled tokens of all responses."""
        self.finish()
        return sum(self._groups.tokens)

    @property
    def responses(self) -> int:
        """Responses of all groups."""
        self.finish()
        return sum(self._groups.responses)

    def line(self) -> Mapping[str, object]:
        """The figures, by name."""
        self.finish()
        return self._summed_up() if self._line is None else self._line

    def _summed_up(self) -> dict[str, object]:
        count, ages = self.responses, self._ages
        lengths = sorted(self._lengths)
        up_to = list(accumulate(map(self._lengths.__getitem__, lengths)))
        return {
            **_reward_figures(self._groups),
            **_equal_groups(self._groups),
            **_reward_parts(self._parts),
            **_by_source(self._groups, self._sources),
            **episode_metrics(self._episodes),
            "response_length/mean": self.tokens / count,
            "response_length/p50": lengths[_rank(up_to, 0.5)],
            "response_length/p99": lengths[_rank(up_to, 0.99)],
            "response_length/max": lengths[-1],
            "response_length/cut": self._cut / count,
            "staleness/mean": sum(age * n for age, n in ages.items()) / ages.total() if ages else 0.0,
            "staleness/max": max(ages, default=0),
            "staleness/hist": {str(age): n for age, n in sorted(ages.items())},
            "partial/share": self._partial / max(1, self._trajectories),
        }

    def _count(self, one: Contribution) -> None:
        responses = len(one.lengths)
        self._groups.sources.append(one.source)
        self._groups.responses.append(responses)
        self._groups.tokens.append(sum(one.lengths))
        self._groups.reward_sums.append(one.reward_sum)
        self._groups.reward_squares.append(one.reward_squares)
        self._lengths.update(one.lengths)
        for version, count in one.first_versions.items():
            self._ages[self._train_version - version] += count
        self._cut += one.cut
        self._partial += one.partial
        self._trajectories += len(one.items)
        for name, sums in one.reward_parts.items():
            self._parts.setdefault(name, []).append(sums)
        self._episodes += one.episodes


def _rank(up_to: Sequence[int], q: float) -> int:
    """Index of quantile q by nearest rank; `up_to`: cumulated counts."""
    return bisect_right(up_to, min(up_to[-1] - 1, int(q * up_to[-1])))


def _reward_figures(groups: _Groups) -> dict[str, float]:
    """Variances of groups are merged as in Chan, Golub, LeVeque 1979."""
    count = sum(groups.responses)
    mean = fsum(groups.reward_sums) / count
    squares = [
        within + responses * (total / responses - mean) ** 2
        for responses, total, within in zip(
            groups.responses, groups.reward_sums, groups.reward_squares, strict=True
        )
    ]
    return {"reward/mean": mean, "reward/std": sqrt(fsum(squares) / count)}


def _equal_groups(groups: _Groups) -> dict[str, float]:
    """The share of groups whose rewards are all equal, of those with several responses; empty without any."""
    both = zip(groups.responses, groups.reward_squares, strict=True)
    compared = [squares <= responses * EPSILON**2 for responses, squares in both if responses > 1]
    return {"groups/equal_rewards": sum(compared) / len(compared)} if compared else {}


def _by_source(groups: _Groups, sources: Sequence[str]) -> dict[str, float]:
    """Responses, mean reward and mean length by source; only the count for a source without responses."""
    found: dict[str, float] = {}
    places: dict[int, list[int]] = {}
    for place, source in enumerate(groups.sources if sources else ()):
        places.setdefault(source, []).append(place)
    for number, name in enumerate(sources):
        own = places.get(number, [])
        count = sum([groups.responses[place] for place in own])
        found[f"source/{name}/responses"] = count
        if count:
            found[f"source/{name}/reward"] = fsum([groups.reward_sums[place] for place in own]) / count
            found[f"source/{name}/response_length"] = sum([groups.tokens[place] for place in own]) / count
    return found


def _reward_parts(parts: Mapping[str, Sequence[tuple[float, int]]]) -> dict[str, float]:
    """The mean of each named reward, over the responses that it scored."""
    return {
        f"reward/{name}": fsum([total for total, _ in sums]) / sum([count for _, count in sums])
        for name, sums in sorted(parts.items())
    }
