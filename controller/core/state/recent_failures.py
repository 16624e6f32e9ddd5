"""What has gone wrong lately, for the people who watch: respawns, pulls that failed, and preemptions.

Invariants: no decision reads it; how much is remembered does not grow with the run; what has risen above its
limit counts as too much until it is half of that, so that it neither comes and goes nor is forgotten at once.
"""

from collections import deque
from typing import NamedTuple

WINDOW_S = 600.0  # in which failures count as recent
MOST = 128  # failures of one kind that are remembered
FEW_RESPAWNS, FEW_PULLS = 5, 3  # that are too many, in a small fleet
SHARE = 0.1  # of a large fleet's workers: as many failures are too many
STEPS = 5  # in which preemptions count as recent
PREEMPTED_SHARE = 0.05  # of the responses that were trained: more preemptions are too many


class Failure(NamedTuple):
    """One of a kind."""

    at_s: float
    who: str
    why: str


class Failures:
    """Those of one kind."""

    def __init__(self, few: int) -> None:
        """`few`: too many within WINDOW_S, in a fleet that is not large."""
        self._few = self._many = few
        self._is_raised = False
        self._seen: deque[Failure] = deque(maxlen=MOST)

    def add(self, failure: Failure, *, fleet: int) -> None:
        """One more; `fleet`: workers that it could have happened to."""
        self._is_raised = bool(self.too_many(failure.at_s))
        self._many = min(MOST, max(self._few, round(SHARE * fleet)))
        self._seen.append(failure)
        self._is_raised = self._is_raised or len(self._recent(failure.at_s)) >= self._many

    def too_many(self, now_s: float) -> list[Failure]:
        """The recent ones if there were too many and have not become half as many since; else none."""
        found = self._recent(now_s) if self._is_raised else []
        return found if 2 * len(found) > self._many else []

    def _recent(self, now_s: float) -> list[Failure]:
        return [failure for failure in self._seen if failure.at_s > now_s - WINDOW_S]


class Preemptions:
    """How many responses engines pushed back for want of KV memory, by the responses that were trained."""

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
    """All kinds of one run."""

    def __init__(self) -> None:
        self.respawns, self.pulls = Failures(FEW_RESPAWNS), Failures(FEW_PULLS)
        self.preemptions = Preemptions()
