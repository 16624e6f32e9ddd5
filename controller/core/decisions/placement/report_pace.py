"""How often instances tell of their progress, where `rollout.progress_s` is `auto`.

Invariants: never more often than every FASTEST_PROGRESS_S seconds nor less often than every SLOWEST_S, so
what a lost worker had not told of is what it generates in so long; all instances report at one pace; it is a
function of how many responses run, and changes in few steps, up at once and down late.
"""

from bisect import bisect_left

from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from protocol.messages import Report
from protocol.settings import FASTEST_PROGRESS_S

RESPONSES_PER_S = 16_384  # that a controller hears of: a small share of a core
SLOWEST_S = 2.0
STEPS = tuple(FASTEST_PROGRESS_S * 2 ** (step / 2) for step in range(5))
MOST_RUNNING = tuple(step * RESPONSES_PER_S for step in STEPS)
LATE = 2  # steps too slow, from which on it is made faster: what hovers between two does not change


class ReportPace:
    """The pace of all instances."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.step = 0
        """Of STEPS."""

    @property
    def is_auto(self) -> bool:
        """Whether it is chosen here."""
        return self.state.config.rollout.progress_s == "auto"

    @property
    def progress_s(self) -> float:
        """Seconds between two reports of an instance now."""
        return STEPS[self.step] if self.is_auto else self.state.config.rollout.first_progress_s

    def run(self) -> None:
        """Tell all instances if what runs now asks for another pace."""
        running = self.state.registry.running
        wanted = min(bisect_left(MOST_RUNNING, running), len(STEPS) - 1)
        if self.step - LATE < wanted <= self.step or not self.is_auto:
            return
        self.step = wanted
        for instance in self.state.registry.instances():
            if instance.ready:
                self.tell(instance)

    def on_ready(self, instance: Instance) -> None:
        """One that begins reports as the configuration says."""
        if self.step:
            self.tell(instance)

    def tell(self, instance: Instance) -> None:
        """This instance reports at this pace."""
        status_s = self.state.config.rollout.status_s * self.progress_s / FASTEST_PROGRESS_S
        self.state.send(instance.peer, Report(self.progress_s, status_s))

    def restart(self) -> None:
        """Nobody has been told anything by this controller."""
        self.step = 0
