"""Reports the progress of an evaluation without a run, in a line now and then.

Invariant: the first line comes after EVERY_S, so a quick evaluation reports nothing.
"""

from collections.abc import Callable, Sequence

EVERY_S = 10.0


class RowsSoFar:
    """Counts finished rows."""

    def __init__(self, total: int, tell: Callable[[str], object], clock: Callable[[], float]) -> None:
        """`tell` takes a sentence; `clock` gives seconds."""
        self._total, self._tell, self._clock = total, tell, clock
        self._told_s = clock()
        self._over = self._failed = self._attempts = 0
        self._sum = 0.0

    def count(self, rewards: Sequence[float] | None) -> None:
        """Count a row: the rewards of its attempts, or None if it has failed."""
        self._over += 1
        self._failed += rewards is None
        self._attempts += len(rewards or ())
        self._sum += sum(rewards or ())
        now = self._clock()
        if now - self._told_s >= EVERY_S:
            self._told_s = now
            self._tell(self._words())

    def _words(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        mean = f", mean reward {self._sum / self._attempts:.3f}" if self._attempts else ""
        return f"{self._over} of {self._total} rows{failed}{mean}."
