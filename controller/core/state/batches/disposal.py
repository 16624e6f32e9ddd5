"""Frees objects that are no longer needed, a few at each event: a whole batch at once would stall the core.

Invariant: nothing in here is read again, so the time of freeing changes no decision; images do not hold it.
"""

from collections import deque
from collections.abc import Iterable

LEAST = 4  # at each event: a group with its trajectories takes about 15 us
SHARE = 256  # at each event one in so many is freed, so that all is within about a thousand events


class Disposal:
    """Groups that were trained, and items of batches that a checkpoint covers."""

    def __init__(self) -> None:
        self._left: deque[object] = deque()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, things: Iterable[object]) -> None:
        """Take objects of which the caller keeps none."""
        self._left.extend(things)

    def go_on(self) -> None:
        """Free the next few."""
        left = self._left
        if left:  # mostly not
            for _ in range(min(len(left), max(LEAST, len(left) // SHARE))):
                left.popleft()

    def clear(self) -> None:
        """Free all of them."""
        self._left.clear()
