"""How often instances report their progress and load, where the section `rollout` says `auto`.

Invariants: progress is reported at most every FASTEST_PROGRESS_S and at least every SLOWEST_S seconds, so a
lost worker loses at most SLOWEST_S seconds of tokens; all instances report at one pace; the pace depends on
the number of running responses and of instances, and changes in few steps, to slower at once and to faster
late; instances told per step are bounded, and the rest are told in the steps that follow at once.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import log2

from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from protocol.messages import Report
from protocol.settings import FASTEST_PROGRESS_S, FASTEST_STATUS_S, SLOWEST_STATUS_S

RESPONSES_PER_S = 8_192  # progress of so many responses takes the controller a small share of a core
SLOWEST_S = 2.0


def _steps(fastest_s: float, slowest_s: float) -> tuple[float, ...]:
    """Paces from the fastest to the slowest, each slower than the one before by the root of 2."""
    return tuple(fastest_s * 2 ** (step / 2) for step in range(round(2 * log2(slowest_s / fastest_s)) + 1))


STEPS = _steps(FASTEST_PROGRESS_S, SLOWEST_S)
MOST_RUNNING = tuple(step * RESPONSES_PER_S for step in STEPS)
LOADS_PER_S = 256  # load reports per second; each takes the controller about 0.1 ms
STATUS_STEPS = _steps(FASTEST_STATUS_S, SLOWEST_STATUS_S)
MOST_INSTANCES = tuple(step * LOADS_PER_S for step in STATUS_STEPS)
TOLD_PER_STEP = 128  # then other events have their turn
LATE = 2  # the pace is made faster only if it is so many steps too slow, so that it does not flap


class ReportPace:
    """The pace at which all instances report."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.step = 0
        """Index into STEPS."""
        self.status_step = 0
        """Index into STATUS_STEPS."""
        self._untold: list[Instance] = []  # instances that have to be told the newest pace

    @property
    def is_cut(self) -> bool:
        """Whether some instances have not been told the pace."""
        return bool(self._untold)

    @property
    def progress_s(self) -> float:
        """Seconds between two reports of an instance now."""
        rollout = self.state.config.rollout
        return STEPS[self.step] if rollout.progress_s == "auto" else rollout.first_progress_s

    @property
    def status_s(self) -> float:
        """Seconds between two load reports of a busy instance now."""
        rollout = self.state.config.rollout
        if rollout.status_s == "auto":
            return STATUS_STEPS[self.status_step]
        return rollout.first_status_s * self.progress_s / FASTEST_PROGRESS_S

    def run(self) -> None:
        """Tell instances if the current load asks for another pace."""
        rollout, registry = self.state.config.rollout, self.state.registry
        step, status_step = self.step, self.status_step
        if rollout.progress_s == "auto":
            step = _next(step, MOST_RUNNING, registry.running)
        if rollout.status_s == "auto":
            status_step = _next(status_step, MOST_INSTANCES, registry.ready_instances)
        if (step, status_step) != (self.step, self.status_step):
            self.step, self.status_step = step, status_step
            self._untold = list(registry.instances())
        if self._untold:
            some, self._untold = self._untold[:TOLD_PER_STEP], self._untold[TOLD_PER_STEP:]
            for instance in some:
                if instance.ready:
                    self.tell(instance)

    def on_ready(self, instance: Instance) -> None:
        """Tell a new instance the pace, if it is not the one of the configuration."""
        if self.step or self.status_step:
            self.tell(instance)

    def tell(self, instance: Instance) -> None:
        """Send an instance the current pace."""
        self.state.send(instance.peer, Report(self.progress_s, self.status_s))

    def restart(self) -> None:
        """The controller was restarted: instances begin at the pace of the configuration."""
        self.step = self.status_step = 0
        self._untold = []


def _next(step: int, most: Sequence[float], amount: int) -> int:
    """The step for this amount, or the current step if it is less than LATE steps too slow."""
    wanted = min(bisect_left(most, amount), len(most) - 1)
    return step if step - LATE < wanted <= step else wanted
