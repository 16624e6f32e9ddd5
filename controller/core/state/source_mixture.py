"""Chooses the source of each prompt, if the data has several.

Invariants: equal weights, seed and events give equal choices; in any stretch of prompts every source has its
share, to within a few; a source that has ended is not chosen again.
"""

import random
from dataclasses import dataclass

from controller.config.data import DataSettings
from strategies.schedules import MixtureView, Schedule, SourceView

REMEMBERED = 64  # groups over which a pass rate is averaged, about


@dataclass(slots=True)
class Source:
    """One source of prompts, as the core knows it."""

    name: str
    weight: float
    credit: float  # prompts by which it is behind its share
    read: int = 0
    scored: int = 0
    pass_rate: float = 0.5
    has_ended: bool = False


class Mixture:
    """Chooses among sources by credit: a prompt adds its share to each, and costs the chosen one 1."""

    def __init__(self, data: DataSettings, seed: int) -> None:
        first = random.Random(f"{seed} mixture")  # first credits
        self.sources = [Source(one.name, one.weight, first.random()) for one in data.sources]
        self._pass_reward = data.pass_reward
        self._stages = tuple(
            (stage.from_step, tuple(stage.weights.get(one.name, 0.0) for one in data.sources))
            for stage in data.stages
        )
        self._asked: tuple[int, ...] = ()
        self._read_of_one = 0  # if there is only one source

    @property
    def asked(self) -> tuple[int, ...]:
        """Sources of the prompts that are being read, in order; () if there is only one source."""
        return self._asked

    def choose(self, count: int, step: int, schedule: Schedule) -> tuple[int, ...]:
        """Sources of the next `count` prompts; () if there is only one."""
        if self.sources:
            weights = self._weights(step, schedule)
            total = sum(weights)
            shares = [weight / total for weight in weights]
            self._asked = tuple(self._next(shares) for _ in range(count))
        return self._asked

    def on_read(self, count: int, sources: tuple[int, ...]) -> list[tuple[int, int]]:
        """Prompts were read, from `sources` in this order: returns the source and number of each."""
        if not self.sources:
            self._read_of_one += count
            return [(0, row) for row in range(self._read_of_one - count, self._read_of_one)]
        found = sources or self._asked[:count]
        places: list[tuple[int, int]] = []
        for number in found:
            places.append((number, self.sources[number].read))
            self.sources[number].read += 1
        for number, source in enumerate(self.sources):
            missing = self._asked.count(number) - found.count(number)
            source.credit += missing
            source.has_ended |= missing > 0
        self._asked = ()
        return places

    @property
    def read(self) -> list[int]:
        """Number of prompts read of each source."""
        return [source.read for source in self.sources] or [self._read_of_one]

    def on_scored(self, source: int, rewards: tuple[float, ...]) -> None:
        """Update the pass rate of a source with the rewards of a group."""
        if self.sources and rewards:
            one = self.sources[source]
            one.scored += 1
            passed = sum(reward >= self._pass_reward for reward in rewards) / len(rewards)
            one.pass_rate += (passed - one.pass_rate) / min(one.scored, REMEMBERED)

    def _weights(self, step: int, schedule: Schedule) -> list[float]:
        views = tuple(SourceView(s.name, s.weight, s.read, s.scored, s.pass_rate) for s in self.sources)
        wanted = schedule(MixtureView(step, views, self._stages))
        for weights in (wanted, [source.weight for source in self.sources], [1.0] * len(self.sources)):
            live = [
                0.0 if source.has_ended else float(weight)
                for source, weight in zip(self.sources, weights, strict=True)
            ]
            if sum(live) > 0:
                return live
        return [1.0] * len(self.sources)  # all have ended; to be read once more says so

    def _next(self, shares: list[float]) -> int:
        best = -1
        for number, share in enumerate(shares):
            source = self.sources[number]
            source.credit += share
            if share > 0 and (best < 0 or source.credit > self.sources[best].credit):
                best = number
        self.sources[best].credit -= 1
        return best
