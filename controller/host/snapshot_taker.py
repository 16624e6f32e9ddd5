"""Takes the snapshots of a live run, between its turns.

Invariants: fingerprints of the last turn are written in the transaction of the snapshot; if the system can,
the image is made in a forked process, and written when it is ready; where SIGCHLD is ignored, as the starting
program may have it, the image is made at once; a disk that refuses it ends the run.
"""

import signal
from collections.abc import Callable

from controller.config.models import RunSettings
from controller.durability.snapshots import CAN_BEGIN, Snapshots
from controller.durability.store import Store
from controller.host.stepper import Stepper


class SnapshotTaker:
    """Takes a snapshot after a turn if one is due."""

    def __init__(
        self,
        store: Store,
        run: RunSettings,
        *,
        unsaved_events: int,
        is_over: Callable[[], bool],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Takes snapshots of a live run.

        `unsaved_events`: events in the journal after the newest snapshot. A snapshot in progress is dropped
        once `is_over()`; `on_failure(error)` is called if one cannot be written.
        """
        is_compact = run.journal == "compact" or run.durability == "off"  # memory is dear
        self._store = store
        self._snapshots = Snapshots(store, is_compact=is_compact, unsaved_events=unsaved_events)
        self._is_over, self._on_failure = is_over, on_failure
        self._seen_bytes = store.journal_bytes

    def add_line(self, line: dict[str, object]) -> None:
        """A line of metrics.jsonl that no snapshot has yet."""
        self._snapshots.add_line(line)

    def close(self) -> None:
        """Give up a snapshot in progress."""
        self._snapshots.close()

    def after_turn(self, stepper: Stepper, *, events: int, now: float) -> None:
        """Take a snapshot, or begin one, if it is due after so many more events.

        Raises: RunError if the core breaks an invariant, or the disk refuses.
        """
        added, self._seen_bytes = self._store.journal_bytes - self._seen_bytes, self._store.journal_bytes
        if not self._snapshots.is_due(events=events, journal_bytes=added, now=now):
            return
        number = stepper.last
        if CAN_BEGIN and signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:  # else no end is told
            self._snapshots.begin(
                stepper.core, number=number, now=now, on_image=lambda image: self._finish(stepper, image)
            )
            return
        with self._store.transaction():
            stepper.write_rest()
            self._snapshots.take(stepper.core, number=number, now=now)
            stepper.passed(number)

    def _finish(self, stepper: Stepper, image: bytes) -> None:
        if self._is_over():
            return
        try:
            with self._store.transaction():
                stepper.write_rest()
                self._snapshots.finish(image)
                stepper.passed(self._snapshots.checked)
        except Exception as error:  # the disk, or a core that breaks an invariant
            self._on_failure(error)
