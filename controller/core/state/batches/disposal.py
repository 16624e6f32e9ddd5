"""What nobody needs any more, freed a few at each event: a whole batch at once would hold up all that comes.

Invariant: nothing in here is looked at again, so when it is freed changes no decision; it is in no image.
"""

from collections import deque
from collections.abc import Iterable

LEAST = 4  # at each event: a group with its trajectories takes about 15 us
SHARE = 256  # of what is there, one in so many: it empties in about a thousand events, however much comes


class Disposal:
    """Groups that were trained, and items of batches that a checkpoint covers."""

    def __init__(self) -> None:
        self._left: deque[object] = deque()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, things: Iterable[object]) -> None:
        """The caller keeps nothing of them."""
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
