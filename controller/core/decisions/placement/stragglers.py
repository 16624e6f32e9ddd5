"""Applies `staleness.stragglers` to the last groups that hold the next batch back.

Invariant: a group is restarted or cut short only while the trainer waits for nothing but such groups.
Source: StaleFlow (arXiv 2601.12784): the proactive filter of its release.
"""

from controller.core.effects import recall
from controller.core.state.run_state import RunState


class Stragglers:
    """Applies `staleness.stragglers`."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    @property
    def is_off(self) -> bool:
        """Whether the next batch simply waits for stragglers."""
        return self.state.config.staleness.stragglers == "wait"

    def give_up(self) -> None:
        """Apply `staleness.stragglers` to the groups that the next batch is waiting for.

        The caller consumes at once: a group that started again under the same version would be due for the
        same batch, and hold it back again.
        """
        staleness, ledger = self.state.config.staleness, self.state.ledger
        if ledger.is_ready():
            return
        blockers = [self.state.groups[id] for id in ledger.blockers()]
        if not 0 < len(blockers) <= staleness.straggler_groups:
            return
        if any(group.state != "generating" or group.is_cut_short for group in blockers):
            return
        if staleness.stragglers == "retry" and ledger.is_ready_without({group.id for group in blockers}):
            for group in blockers:
                recall.withdraw(self.state, group)
                self.state.accounts.counts["stragglers/retried"] += 1
        elif staleness.stragglers == "truncate" and len(blockers) + ledger.occupied >= ledger.batch_groups:
            for group in blockers:
                recall.cut_short(self.state, group)
                self.state.accounts.counts["stragglers/truncated"] += 1
