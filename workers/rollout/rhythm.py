"""When an instance reports: at its own moments, so that the reports of a thousand are spread over a period.

All instances begin to generate, and go on after a pull, at the same moment. Counted from there, the reports
of all of them would reach the controller together, once in every period.
"""

from math import floor


def next_moment(now: float, period_s: float, phase: float) -> float:
    """The first moment after `now` of those that are `period_s` apart.

    `phase`: which of all such rhythms it is, from 0 to 1. Times are of any clock, in seconds.
    """
    if period_s <= 0:
        return now
    number = floor(now / period_s + phase) + 1
    return max((number - phase) * period_s, now)


class Rhythm:
    """Something that one instance does again and again, the first time at once."""

    def __init__(self, phase: float) -> None:
        self._phase, self._period_s, self._due_at = phase, 0.0, 0.0

    def set_period(self, period_s: float, now: float) -> None:
        """Do it every so many seconds from now on."""
        self._period_s = period_s
        self._due_at = min(self._due_at, self._next(now))

    def is_due(self, now: float) -> bool:
        """Whether its time has come; then its next time is waited for."""
        if now < self._due_at:
            return False
        self.wait(now)
        return True

    def wait(self, now: float) -> None:
        """It was done by itself: wait for the next time."""
        self._due_at = self._next(now)

    def _next(self, now: float) -> float:
        return next_moment(now, self._period_s, self._phase)
