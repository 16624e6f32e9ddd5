"""Deadlines that keep moving later, as those of leases do with every message.

Invariants: everything that is watched has an entry at or before its real deadline; what is next does not
depend on which entries were corrected when. Entries of workers that attached together surface together, and
are corrected together.
"""

import heapq
from typing import Any, Generic, Protocol, TypeVar

FEW = 8  # entries that one look corrects one by one


class HasDeadline(Protocol):
    """Something with a deadline."""

    @property
    def deadline(self) -> float | None:
        """Its deadline; None while it has none."""
        ...


W = TypeVar("W", bound=HasDeadline)


class Leases(Generic[W]):
    """A heap of deadlines: the real one is read when an entry surfaces."""

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # [deadline, count, what]: lists, to be corrected where they lie
        self._count = 0

    def watch(self, what: W) -> None:
        """Watch a deadline until it is None. Call again if it moves to an earlier time."""
        if what.deadline is not None:
            self._count += 1
            heapq.heappush(self._heap, [what.deadline, self._count, what])

    def next(self) -> float | None:
        """The earliest real deadline, that of `first`; None if there is none."""
        corrected = 0
        while self._heap:
            entry = self._heap[0]
            deadline: float | None = entry[2].deadline
            if deadline == entry[0]:
                return deadline
            if deadline is None:
                heapq.heappop(self._heap)
            else:
                entry[0] = deadline
                heapq.heapreplace(self._heap, entry)
            corrected += 1
            if corrected == FEW:
                self._correct_all()
        return None

    def first(self) -> W:
        """The thing whose deadline `next` has just returned."""
        return self._heap[0][2]

    def _correct_all(self) -> None:
        for entry in self._heap:
            deadline: float | None = entry[2].deadline
            if deadline is not None and deadline > entry[0]:
                entry[0] = deadline
        heapq.heapify(self._heap)
