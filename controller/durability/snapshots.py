"""Snapshots of the core beside its journal: a restart reads the newest one and the events after it.

Invariants: the core is checked before a snapshot of it is made, at least every CHECK_S seconds in which
anything happens, so that a restart never begins at a core that breaks an invariant; a snapshot is of the core
after the event that it names, and the fingerprints up to that event are in the file; it is written in one
transaction with the lines of metrics.jsonl since the last, so that run.db alone is enough to restore a run
directory; one is made at a time, and takes at most a hundredth of the loop's time; where the system can fork
(`controller.durability.fork`), it is made beside the loop, and takes at most a tenth of a core.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from math import inf

from controller.core.core import Core
from controller.durability.damage import line_checksum
from controller.durability.fork import IS_POSSIBLE, Picture
from controller.durability.image.freezer import Freezer
from controller.durability.image.packed import pack
from controller.durability.release import release
from controller.durability.store import Store
from controller.durability.violation import BrokenInvariant, violation_of
from protocol.errors import LocalError

EVENTS = 20_000  # between two snapshots: a restart steps through them in four seconds
JOURNAL_BYTES = 64 << 20
CHECK_S = 60.0  # the core is checked at least this often, as long as events come
AGAIN_S = 60.0  # until the next try, when the system had no room
SHARE = 0.01  # of the loop's time that snapshots may take
SHARE_BESIDE = 0.1  # of a core that they may take beside the loop: a restart replays the events after the
# newest one, and with many responses in flight that is slower than loading it
KEPT = 2  # the newest, and the one before in case the newest is damaged

log = logging.getLogger("staleflow.snapshots")


class Snapshots:
    """Writes the snapshots of one run."""

    def __init__(self, store: Store, *, is_compact: bool, unsaved_events: int = 0) -> None:
        """Snapshots of the core of `store`.

        `is_compact`: delete the events that all kept snapshots cover; `unsaved_events`: in the journal after
        the newest snapshot.
        """
        self._store, self._is_compact = store, is_compact
        self._release = json.dumps(release())
        self._freezer = Freezer()
        self._lines: list[dict[str, object]] = []
        self._events, self._bytes = unsaved_events, 0
        self._not_before, self._checked_at = 0.0, 0.0
        self._picture: Picture | None = None
        self.checked = 0
        """Number of the newest event after which the core was found to keep its invariants."""
        self.pause_s = 0.0
        """Seconds that the last one held the caller up."""

    def add_line(self, line: dict[str, object]) -> None:
        """Keep a line of metrics.jsonl for the next snapshot."""
        self._lines.append(line)

    def is_due(self, *, events: int, journal_bytes: int, now: float) -> bool:
        """Whether it is time for a snapshot, after so many more events of so many bytes."""
        self._events, self._bytes = self._events + events, self._bytes + journal_bytes
        is_long = self._events >= EVENTS or self._bytes >= JOURNAL_BYTES or now >= self._checked_at + CHECK_S
        return is_long and self._events > 0 and now >= self._not_before

    def take(self, core: Core, *, number: int, now: float) -> None:
        """Write the core as it is after event `number`, inside a transaction with all events up to it.

        Raises: BrokenInvariant.
        """
        begin = time.perf_counter()
        if violation := violation_of(core):
            raise BrokenInvariant(violation.words, number)
        self.checked = number
        try:
            image = pack(self._freezer.freeze(core))
        except LocalError:  # the journal has it all; a release that holds something new must say so in tests
            log.exception("A snapshot was not written.")
        else:
            self._write(image, self._lines, number=number, now=now)
            self._lines = []
        self._events = self._bytes = 0
        self.pause_s = time.perf_counter() - begin
        self._not_before, self._checked_at = now + self.pause_s / SHARE, now
        log.info("A snapshot after event %d took %.0f ms.", number, 1e3 * self.pause_s)

    def begin(self, core: Core, *, number: int, now: float, on_image: Callable[[bytes], None]) -> None:
        """Begin a snapshot beside the running loop, which calls `on_image` later; then call `finish`."""
        began = time.perf_counter()
        try:
            self._picture = Picture(core)
        except OSError as error:
            log.error("No snapshot: the system has no room for a copy of the controller: %s", error)
            self._not_before = now + AGAIN_S
            return
        self._picture.start(on_image)
        self.pause_s = time.perf_counter() - began
        self._begun, self._checked_at = (number, now, began, self._lines), now
        self._events, self._bytes, self._lines = 0, 0, []
        self._not_before = inf

    def finish(self, image: bytes) -> None:
        """Write the snapshot that was begun, inside a transaction with all events up to it; b"": none came.

        Raises: BrokenInvariant.
        """
        begin = time.perf_counter()
        number, now, began, lines = self._begun
        if self._picture is not None and self._picture.violation:
            raise BrokenInvariant(self._picture.violation, number)
        if image:
            self.checked = number
            self._write(image, lines, number=number, now=now)
        else:
            self._lines = lines + self._lines
            log.error("The snapshot after event %d was not made; the journal has it all.", number)
        end, self._picture = time.perf_counter(), None
        self.pause_s += end - begin
        self._not_before = now + max((end - began) / SHARE_BESIDE, self.pause_s / SHARE)
        text = "A snapshot after event %d took %.0f ms, for %.1f of which the controller paused."
        log.info(text, number, 1e3 * (end - began), 1e3 * self.pause_s)

    def close(self) -> None:
        """Give up a snapshot that was begun."""
        if self._picture is not None:
            self._picture.close()

    def _write(self, image: bytes, lines: list[dict[str, object]], *, number: int, now: float) -> None:
        self._store.put_snapshot(number, now, self._release, image)
        _put_lines(self._store.database, lines)
        covered = _keep_newest(self._store.database, KEPT)
        if self._is_compact and covered is not None:
            _forget_events(self._store.database, covered)


CAN_BEGIN = IS_POSSIBLE
"""Whether `begin` works here; else it is `take`."""


def _put_lines(db: sqlite3.Connection, lines: Iterable[dict[str, object]]) -> None:
    """Keep lines of metrics.jsonl, each under its step."""
    texts = [(int(str(line["step"])), json.dumps(line)) for line in lines]
    db.executemany(
        "INSERT OR REPLACE INTO lines VALUES (?, ?, ?)",
        [(step, text, line_checksum(step, text)) for step, text in texts],
    )


def _keep_newest(db: sqlite3.Connection, count: int) -> int | None:
    """Delete all but the newest `count` snapshots, and the one that a shortened journal begins with.

    Returns the event that the oldest of the newest is of, None while there are fewer.
    """
    newest = "SELECT seq FROM snapshots ORDER BY seq DESC LIMIT 1 OFFSET ?"
    found: tuple[int] | None = db.execute(newest, (count - 1,)).fetchone()
    if found is None:
        return None
    begins = "(SELECT coalesce(min(seq), 1) - 1 FROM events)"  # run.journal may have been compact before
    db.execute(f"DELETE FROM snapshots WHERE seq < ? AND seq <> {begins}", found)
    return found[0]


def _forget_events(db: sqlite3.Connection, until: int) -> None:
    """Delete the history up to this event, which a snapshot covers."""
    db.execute("DELETE FROM events WHERE seq <= ?", (until,))
    db.execute("DELETE FROM snapshots WHERE seq < ?", (until,))
    db.execute("DELETE FROM fingerprints WHERE first_seq <= ?", (until,))
