"""Virtual time: what will happen, in order."""

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of calls. Two at the same time happen in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make this call then; at once if that is past."""
        self._count += 1
        heapq.heappush(self._heap, (max(time_s, self.now), self._count, call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make this call so many seconds from now."""
        self.at(self.now + delay_s, call, *arguments)

    def turn(self) -> None:
        """Make the next call."""
        self.now, _, call, arguments = heapq.heappop(self._heap)
        call(*arguments)
