"""What a worker was asked for and has not answered, and the alarms for it.

Invariants: a line holds what a worker does in turn, so that only the first of it is waited for, from the
moment that it became the first; an alarm is never later than what it is for, and there is one per worker.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol.ids import PeerId


@dataclass(slots=True)
class Owed:
    """One thing that a worker was asked for."""

    what: str  # as in "it was asked to WHAT"
    limit: str  # the kind that LIMITS knows


@dataclass(slots=True)
class Line:
    """Things that a worker does one after another, by what answers them."""

    asks: dict[tuple[object, ...], Owed] = field(default_factory=dict)
    since: float = 0.0  # when the first became the first

    @property
    def first(self) -> Owed | None:
        """What it has to answer next."""
        return next(iter(self.asks.values()), None)

    def add(self, key: tuple[object, ...], ask: Owed, now: float) -> None:
        """It was asked for one thing more."""
        if not self.asks:
            self.since = now
        self.asks[key] = ask

    def answer(self, key: tuple[object, ...], now: float) -> None:
        """It has answered this; harmless if it was not asked."""
        if key in self.asks:
            if next(iter(self.asks)) == key:
                self.since = now
            del self.asks[key]


@dataclass(slots=True)
class Duty:
    """All that one worker owes."""

    peer: PeerId
    lines: dict[str, Line] = field(default_factory=dict)
    free_since: float = 0.0  # when the line of orders was last empty: what else it owes waits behind these
    look_at: float | None = None  # when its trajectories are to be looked at
    is_silent: bool = False  # trajectories got no token in their time, and no other has got one since
    failures: int = 0  # generations that failed, with none between that came to an end
    alarm: float | None = None  # that is set

    def line(self, name: str) -> Line:
        """Its line of this name."""
        return self.lines.get(name) or self.lines.setdefault(name, Line())

    def open(self) -> Iterator[Line]:
        """The lines in which something is awaited."""
        return (line for line in self.lines.values() if line.asks)


class Alarms:
    """When to look at whom next. Setting one costs the logarithm of their number."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Duty]] = []
        self._count = 0

    def set(self, duty: Duty, at: float) -> None:
        """Look at it by then, if not before."""
        if duty.alarm is None or at < duty.alarm:
            duty.alarm = at
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, duty))

    def next(self) -> float | None:
        """The first of all."""
        heap = self._heap
        while heap:
            at, _, duty = heap[0]
            if at == duty.alarm:
                return at
            heapq.heappop(heap)  # another one was set before it
        return None

    def due(self, is_past: Callable[[float], bool]) -> Duty | None:
        """The next to look at now, for whom none is set any more; None if there is none."""
        first = self.next()
        if first is None or not is_past(first):
            return None
        duty = heapq.heappop(self._heap)[2]
        duty.alarm = None
        return duty
