"""Requests that a worker has not answered, and the alarms for their limits.

Invariants: a worker does the requests of one line in turn, so the time of a request counts from the moment
when it became the first of its line; an alarm is never later than the limit it is for, and a worker has one.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from protocol.ids import PeerId


@dataclass(slots=True)
class Owed:
    """One unanswered request."""

    what: str  # as in "it was asked to WHAT"
    limit: str  # the kind of limit: the key limits.<limit>_s, or "score"


@dataclass(slots=True)
class Line:
    """Requests that a worker does one after another, by the key of their answer."""

    asks: dict[tuple[object, ...], Owed] = field(default_factory=dict)
    since: float = 0.0  # when the first became the first

    @property
    def first(self) -> Owed | None:
        """The request that is to be answered next."""
        return next(iter(self.asks.values()), None)

    def add(self, key: tuple[object, ...], ask: Owed, now: float) -> None:
        """Add a request."""
        if not self.asks:
            self.since = now
        self.asks[key] = ask

    def answer(self, key: tuple[object, ...], now: float) -> None:
        """Remove an answered request, if it is here."""
        if key in self.asks:
            if next(iter(self.asks)) == key:
                self.since = now
            del self.asks[key]


@dataclass(slots=True)
class Duty:
    """All unanswered requests of one worker."""

    peer: PeerId
    lines: dict[str, Line] = field(default_factory=dict)
    free_since: float = 0.0  # when its orders were last all done; trajectories wait behind orders
    look_at: float | None = None  # when to check its trajectories
    is_silent: bool = False  # trajectories got no token in time, and none has got one since
    failures: int = 0  # consecutive failed generations
    alarm: float | None = None  # time of its alarm

    def line(self, name: str) -> Line:
        """The line of this name; made if it is not there."""
        return self.lines.get(name) or self.lines.setdefault(name, Line())

    def open(self) -> Iterator[Line]:
        """Lines with unanswered requests."""
        return (line for line in self.lines.values() if line.asks)


class Alarms:
    """A heap of the times at which to check workers."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Duty]] = []
        self._count = 0

    def set(self, duty: Duty, at: float) -> None:
        """Check a worker at this time, unless its alarm is earlier."""
        if duty.alarm is None or at < duty.alarm:
            duty.alarm = at
            self._count += 1
            heapq.heappush(self._heap, (at, self._count, duty))

    def look_at_all(self, duties: Iterable[Duty], now: float) -> None:
        """Check all these workers, and their trajectories, now."""
        for duty in duties:
            duty.look_at = None if duty.look_at is None else now
            self.set(duty, now)

    def next(self) -> float | None:
        """Time of the first alarm; None if there is none."""
        heap = self._heap
        while heap:
            at, _, duty = heap[0]
            if at == duty.alarm:
                return at
            heapq.heappop(heap)  # replaced by an earlier one
        return None

    def due(self, is_past: Callable[[float], bool]) -> Duty | None:
        """Take the next worker whose alarm is past; None if there is none."""
        first = self.next()
        if first is None or not is_past(first):
            return None
        duty = heapq.heappop(self._heap)[2]
        duty.alarm = None
        return duty
