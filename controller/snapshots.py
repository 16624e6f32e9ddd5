"""When the whole core is written beside its journal, so that a restart is the newest snapshot and what
follows.

Invariants: a snapshot is of the core after the event that it names, whose fingerprint and all before are in
the file; it is written in one transaction with the lines of metrics.jsonl since the last, so that a run
directory is made whole from run.db alone; making them takes at most a hundredth of the controller's time.
"""

import json
import logging
import time

from controller.core import Core
from controller.core_image import Freezer
from controller.release import release
from controller.store import Store
from protocol.errors import LocalError

EVENTS = 20_000  # since the last snapshot: four seconds of stepping through them again
JOURNAL_BYTES = 64 << 20
SHARE = 0.01  # of the time that snapshots may take
KEPT = 2  # the newest, and one more in case that it is damaged

log = logging.getLogger("staleflow.snapshots")


class Snapshots:
    """Writes those of one run."""

    def __init__(self, store: Store, *, is_compact: bool, unsaved_events: int = 0) -> None:
        """`is_compact`: delete the events that all kept snapshots cover; `unsaved_events`: in the journal
        after the newest snapshot."""
        self._store, self._is_compact = store, is_compact
        self._release = json.dumps(release())
        self._freezer = Freezer()
        self._lines: list[dict[str, object]] = []
        self._events, self._bytes = unsaved_events, 0
        self._not_before = 0.0
        self.pause_s = 0.0
        """Seconds that the last one took."""

    def add_line(self, line: dict[str, object]) -> None:
        """A line of metrics.jsonl that no snapshot has yet."""
        self._lines.append(line)

    def is_due(self, *, events: int, journal_bytes: int, now: float) -> bool:
        """Whether it is time for one, after so many more events of so many bytes."""
        self._events, self._bytes = self._events + events, self._bytes + journal_bytes
        return (self._events >= EVENTS or self._bytes >= JOURNAL_BYTES) and now >= self._not_before

    def take(self, core: Core, *, number: int, now: float) -> None:
        """Write the core as it is after event `number`, inside a transaction that has all before it."""
        begin = time.perf_counter()
        try:
            image = self._freezer.freeze(core)
        except LocalError:  # the journal has it all; a release that holds something new must say so in tests
            log.exception("A snapshot was not written.")
        else:
            self._store.put_snapshot(number, now, self._release, image)
            self._store.put_lines(self._lines)
            self._lines = []
            covered = self._store.keep_snapshots(KEPT)
            if self._is_compact and covered is not None:
                self._store.forget_events(covered)
        self._events = self._bytes = 0
        self.pause_s = time.perf_counter() - begin
        self._not_before = now + self.pause_s / SHARE
        log.info("A snapshot after event %d took %.0f ms.", number, 1e3 * self.pause_s)
