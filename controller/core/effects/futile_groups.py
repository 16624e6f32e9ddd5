"""Groups in a row that leave nothing to train on: they are told of, and end the run where there is no end.

Invariant: a run whose groups are all dropped does not go on in silence, nor, unless that is wanted, for ever.
"""

from controller.core.commands import Warn
from controller.core.state.run_state import RunState

WARNINGS = [4**power for power in range(1, 16)]  # batches' worth of groups in a row


class FutileGroups:
    """Those that are dropped by one rule."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._in_a_row = 0

    def reset(self) -> None:
        """One was not dropped, or the controller was started again."""
        self._in_a_row = 0

    def count(self, why: str) -> None:
        """Another one was. `why`: by which rule, and what that means: it follows "groups in a row"."""
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
