"""Counts consecutive groups that leave nothing to train on; warns of them, and ends the run at a limit.

Invariant: a run whose groups are all dropped warns, and ends unless `limits.filtered_batches` is 0.
"""

from controller.core.commands import Warn
from controller.core.state.run_state import RunState

WARNINGS = [4**power for power in range(1, 16)]  # at so many batches' worth of consecutive groups


class FutileGroups:
    """Consecutive groups that one rule has dropped."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._in_a_row = 0

    def reset(self) -> None:
        """A group was not dropped, or the controller was restarted."""
        self._in_a_row = 0

    def count(self, why: str) -> None:
        """Another group was dropped. `why`: the rule and what it means; it follows "N groups in a row"."""
        self._in_a_row += 1
        count, batch = self._in_a_row, self.state.config.trainer.batch_groups
        most, what = self.state.config.limits.filtered_batches, f"{count} groups in a row {why}"
        if most and count >= most * batch:
            self.state.end(
                f"{what}. limits.filtered_batches allows {most} batches of {batch}.", is_success=False
            )
        elif count % batch == 0 and count // batch in WARNINGS:
            end = f"; the run ends after {most * batch} of them (limits.filtered_batches)" if most else ""
            self.state.emit(Warn(f"{what}{end}."))
