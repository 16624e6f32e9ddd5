"""When an instance reports: each at its own phase, so that a thousand reports are spread over a period.

All instances begin to generate, and continue after a pull, at the same moment. Counted from there, all their
reports would reach the controller together, once in every period.
"""

from math import floor


def next_moment(now: float, period_s: float, phase: float) -> float:
    """The first moment after `now` of those that are `period_s` apart.

    `phase`: of this rhythm, from 0 to 1. Times are of any clock, in seconds.
    """
    if period_s <= 0:
        return now
    number = floor(now / period_s + phase) + 1
    return max((number - phase) * period_s, now)


class Rhythm:
    """A periodic action of one instance, due at once for the first time."""

    def __init__(self, phase: float) -> None:
        self._phase, self._period_s, self._due_at = phase, 0.0, 0.0

    def set_period(self, period_s: float, now: float) -> None:
        """Set the period, in seconds, from now on."""
        self._period_s = period_s
        self._due_at = min(self._due_at, self._next(now))

    def is_due(self, now: float) -> bool:
        """Whether the action is due; if so, its next time is set."""
        if now < self._due_at:
            return False
        self.wait(now)
        return True

    def wait(self, now: float) -> None:
        """Set the next time: the action was done for another reason."""
        self._due_at = self._next(now)

    def _next(self, now: float) -> float:
        return next_moment(now, self._period_s, self._phase)
