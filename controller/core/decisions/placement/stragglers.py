"""Stragglers at the bound: what happens to the groups that alone hold the next batch back.

Invariant: a group is given up or cut short only while the trainer waits for it alone.
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
        """Whether stragglers are waited for."""
        return self.state.config.staleness.stragglers == "wait"

    def give_up(self) -> None:
        """Apply `staleness.stragglers` to the groups that the next batch is waiting for.

        The caller consumes at once: a group that starts again under the weights that it had before would be
        due for the same batch, and so hold it back again.
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
