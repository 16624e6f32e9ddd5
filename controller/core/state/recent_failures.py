"""Recent failures, for alarms: respawns, failed pulls and preemptions.

Invariants: no decision reads them; memory does not grow with the run; a count that exceeded its limit counts
as too much until it is half of that, so that an alarm neither flaps nor vanishes at once.
"""

from collections import deque
from typing import NamedTuple

WINDOW_S = 600.0  # age up to which failures count as recent
MOST = 128  # failures of one kind that are remembered
FEW_RESPAWNS, FEW_PULLS = 5, 3  # so many are too many in a small fleet
SHARE = 0.1  # in a large fleet, failures of this share of its workers are too many
STEPS = 5  # train steps in which preemptions count as recent
PREEMPTED_SHARE = 0.05  # more preemptions than this share of trained responses are too many


class Failure(NamedTuple):
    """One failure."""

    at_s: float
    who: str
    why: str


class Failures:
    """Failures of one kind."""

    def __init__(self, few: int) -> None:
        """`few`: the number within WINDOW_S that is too many in a small fleet."""
        self._few = self._many = few
        self._is_raised = False
        self._seen: deque[Failure] = deque(maxlen=MOST)

    def add(self, failure: Failure, *, fleet: int) -> None:
        """Add a failure; `fleet`: number of workers that it could have happened to."""
        self._is_raised = bool(self.too_many(failure.at_s))
        self._many = min(MOST, max(self._few, round(SHARE * fleet)))
        self._seen.append(failure)
        self._is_raised = self._is_raised or len(self._recent(failure.at_s)) >= self._many

    def too_many(self, now_s: float) -> list[Failure]:
        """Recent failures, if there were too many and they have not halved since; else none."""
        found = self._recent(now_s) if self._is_raised else []
        return found if 2 * len(found) > self._many else []

    def _recent(self, now_s: float) -> list[Failure]:
        return [failure for failure in self._seen if failure.at_s > now_s - WINDOW_S]


class Preemptions:
    """Preemptions for lack of KV memory, relative to trained responses."""

    def __init__(self) -> None:
        self._totals: deque[tuple[int, int]] = deque([(0, 0)], maxlen=STEPS + 1)
        self._is_raised = False

    def step(self, preempted: int, trained: int) -> None:
        """A train step is finished; both are totals of the run."""
        self._totals.append((preempted, trained))
        most = PREEMPTED_SHARE / 2 if self._is_raised else PREEMPTED_SHARE
        self._is_raised = len(self._totals) > STEPS and self._recent[0] > most * self._recent[1]

    @property
    def too_many(self) -> tuple[int, int] | None:
        """Preemptions and trained responses of the last STEPS steps, if those are too many."""
        return self._recent if self._is_raised else None

    @property
    def _recent(self) -> tuple[int, int]:
        (before, trained_before), (preempted, trained) = self._totals[0], self._totals[-1]
        return preempted - before, trained - trained_before


class RecentFailures:
    """Failures of all kinds."""

    def __init__(self) -> None:
        self.respawns, self.pulls = Failures(FEW_RESPAWNS), Failures(FEW_PULLS)
        self.preemptions = Preemptions()
