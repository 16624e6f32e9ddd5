"""One SQLite file per run: the journal of events, and the payload beside it (durability/payload.py).

Invariants:
- Events and their payload are written in the same transaction, before the core sees the event. `is_joined`
  says of each event whether the core decides only after a later one.
- Fingerprints of the commands that events gave are written afterwards, at the latest with the next events: a
  controller that was killed leaves its last events without them.
- A snapshot shows the core after an event that is here, or was deleted because the snapshot covers it.
- An event that was skipped stays here, and a replay leaves it out as if it had never come.
- A file of another schema, or of another program, is refused and not touched.
- Every record has a checksum: one that has changed on the disk is refused where it is read.
- A log that has grown is folded into the file beside the loop (`LogFolder`), where SQLite may safely do so;
  what is committed stays committed, whether and whenever that happens.
Source: measured in SQLite WAL mode, synchronous NORMAL: 240,000 events/s at 128 a transaction, kill-safe.
"""

import logging
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import Event as Signal
from threading import Thread
from typing import Literal

from controller.core.commands import KeepSamples
from controller.core.events import Event
from controller.durability.damage import (
    FAILURES,
    broken,
    event_checksum,
    is_whole,
    snapshot_digest,
    way_on,
)
from controller.durability.event_codec import decode_event, encode_event
from controller.durability.payload import SCHEMA as PAYLOAD_SCHEMA
from controller.durability.payload import Known, Payload
from controller.durability.sample_records import NONE, Corrections, drop_samples, keep_samples
from controller.durability.sample_records import SCHEMA as SAMPLES_SCHEMA
from protocol.errors import OtherRelease, RemoteError, RunError
from protocol.files import for_owner_only
from protocol.ids import TrajectoryId
from protocol.messages import Message

SCHEMA_VERSION = 9
SCHEMA = f"""
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, now REAL NOT NULL, event BLOB NOT NULL, checksum INTEGER NOT NULL DEFAULT 0,
    is_joined INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS skipped (seq INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS fingerprints (first_seq INTEGER PRIMARY KEY, digests BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (
    seq INTEGER PRIMARY KEY, now REAL NOT NULL, release TEXT NOT NULL, digest BLOB NOT NULL,
    image BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS lines (
    step INTEGER PRIMARY KEY, line TEXT NOT NULL, checksum INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
{PAYLOAD_SCHEMA}{SAMPLES_SCHEMA}"""

FOLD_BYTES = 4 << 20
"""Of the write-ahead log, from which on it is folded: a thousand pages, as SQLite itself would."""
LOOK_COMMITS = 64  # commits between two looks at the size of the log
LONGEST_LOG_PAGES = 16_384  # 64 MiB: then a commit folds the log itself
SAFE_RELEASES = ((3, 44, 6), (3, 50, 7))
"""Of SQLite's older lines, from which on two connections may write and fold at once, as from 3.51.3 on."""
log = logging.getLogger("staleflow.controller")

RECORD = "seq, now, event, checksum, is_joined"
"""Columns of one event, as `decode_record` takes them."""
Durability = Literal["off", "process", "power"]


def may_fold_beside(release: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Whether one connection may fold the log while another one writes, in this release of SQLite.

    In others, a fold beside a commit that begins the log anew can lose what was committed: see "The WAL-Reset
    Bug" on https://sqlite.org/wal.html. With one connection alone that cannot happen.
    """
    return release >= (3, 51, 3) or any(safe <= release < (3, safe[1] + 1) for safe in SAFE_RELEASES)


class LogFolder:
    """Folds the write-ahead log of a database into its file, in a thread with a connection of its own.

    A fold syncs log and file to the disk, which takes milliseconds to seconds; done by a commit, it would
    hold up the event loop for as long. Invariant: it waits for no writer and no reader, and holds up none
    (PASSIVE); a failure is logged once, and from then on commits fold the log when it is long.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self._path, self._synchronous = path, synchronous
        self._commits = 0
        self._wanted, self._is_over = Signal(), False
        self._thread: Thread | None = None
        self.folded = Signal()
        """Set when it was done for the first time."""

    def committed(self) -> None:
        """Note a commit, and have the thread fold the log if it is long."""
        self._commits += 1
        if self._commits % LOOK_COMMITS or self._is_over:
            return
        try:
            size = os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:  # no log: it was folded, or removed with the run
            return
        if size < FOLD_BYTES:
            return
        if self._thread is None:
            of_run = copy_context()  # so that what the thread logs is in this run's log
            self._thread = Thread(target=of_run.run, args=[self._run], name="log of run.db", daemon=True)
            self._thread.start()
        self._wanted.set()

    def close(self) -> None:
        """End the thread, once a fold in progress is done."""
        self._is_over = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            db = sqlite3.connect(self._path, isolation_level=None)
            try:
                db.execute(f"PRAGMA synchronous = {self._synchronous}")
                while self._wanted.wait() and not self._is_over:
                    self._wanted.clear()
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                    self.folded.set()
            finally:
                db.close()
        except sqlite3.Error as error:
            self._is_over = True
            log.warning("The log of %s is not folded beside the run any more: %s", self._path, error)


class Store:
    """The run's database, for use by one thread; none of its methods is async."""

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "process",
        cache_bytes: int = 256 << 20,
    ) -> None:
        """Open or create the file; ":memory:" keeps everything in memory.

        `durability`: "process" survives the kill of this process, "power" also the loss of the machine (a
        disk sync per transaction), "off" nothing: all stays in memory, and no file is made. Raises: RunError
        if SQLite cannot open it, or it is not of this release.
        """
        self._path = ":memory:" if durability == "off" else str(path)
        self.journal_bytes = 0
        """Written as events since the file was opened."""
        self._last = 0
        with ExitStack() as on_failure:
            try:
                if self._path != ":memory:":  # SQLite gives the files beside it the same mode
                    os.close(for_owner_only(self._path, os.O_RDWR | os.O_CREAT))
                self._db = sqlite3.connect(self._path, isolation_level=None)
                on_failure.callback(self._db.close)
                if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                    check_schema(self._db, self._path)
                synchronous = "FULL" if durability == "power" else "NORMAL"
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
                self._db.execute("PRAGMA secure_delete = OFF")  # Debian has it on: zeros for what is dropped
                self._folder: LogFolder | None = None
                if self._path != ":memory:" and may_fold_beside():
                    self._db.execute(f"PRAGMA wal_autocheckpoint = {LONGEST_LOG_PAGES}")
                    self._folder = LogFolder(self._path, synchronous)
                self._db.executescript(SCHEMA)
            except (*FAILURES, OSError) as error:
                raise broken(self._path, error) from error
            with self._in_words():
                self._payload = Payload(self._db, self._path, cache_bytes=cache_bytes)
                self._last = self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
            on_failure.pop_all()

    @property
    def path(self) -> str:
        """The path of the file; ":memory:" if there is none."""
        return self._path

    @property
    def database(self) -> sqlite3.Connection:
        """The connection, for code that reads the history while the store is open."""
        return self._db

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        if self._folder is not None:
            self._folder.close()
        self._db.close()

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            raise broken(self._path, error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything written inside is kept together or not at all. Raises: RunError if the disk refuses."""
        last = self._last
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._last = last
            with self._in_words():
                self._payload.reload()
            if isinstance(error, sqlite3.Error):
                raise broken(self._path, error) from error
            raise
        if self._folder is not None:
            self._folder.committed()

    def append_events(self, now: float, events: Sequence[tuple[Event, bool]]) -> int:
        """Write events of the history; `now`: seconds since the run began. Returns the number of the first.

        Each comes with whether it is joined to the next one.
        """
        first, records = self._last + 1, list[tuple[int, float, bytes, int, int]]()
        for number, (event, is_joined) in enumerate(events, first):
            data = encode_event(event)
            self.journal_bytes += len(data)
            checksum = event_checksum(number, now, data, is_joined)
            records.append((number, now, data, checksum, int(is_joined)))
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", records)
        self._last += len(records)
        return first

    def separate(self, first: int, last: int) -> None:
        """Note that the core decides after each of these events: they are not joined."""
        query = "SELECT seq, now, event FROM events WHERE is_joined AND seq BETWEEN ? AND ?"
        found = self._db.execute(query, (first, last)).fetchall()
        self._db.executemany(
            "UPDATE events SET is_joined = 0, checksum = ? WHERE seq = ?",
            [(event_checksum(*record), record[0]) for record in found],
        )

    @property
    def last_event(self) -> int:
        """Number of the newest event; 0 before the first."""
        return self._last

    def skip(self, number: int, reason: str) -> None:
        """Have replays leave out event `number`.

        `reason`: the error with which the core failed on it; "" if it only came after such an event.
        """
        self._db.execute("INSERT OR IGNORE INTO skipped VALUES (?, ?)", (number, reason))

    def faults_skipped(self) -> int:
        """The number of events on which the core has failed, in the whole run."""
        return self._db.execute("SELECT count(*) FROM skipped WHERE reason <> ''").fetchone()[0]

    def put_fingerprints(self, first: int, digests: bytes) -> None:
        """Keep the fingerprints (durability/fingerprint.py) of the events from number `first` on, joined."""
        self._db.execute("INSERT INTO fingerprints VALUES (?, ?)", (first, digests))

    def put_snapshot(self, number: int, now: float, release: str, image: bytes) -> None:
        """Keep the packed image of a core (`controller.durability.image`) as it was after event `number`."""
        values = (number, now, release, snapshot_digest(number, now, release, image), image)
        self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", values)

    def events(self) -> Iterator[tuple[float, Event]]:
        """The whole history in order, without what was skipped.

        Raises: RunError naming the record that does not decode.
        """
        query = f"SELECT {RECORD} FROM events WHERE seq NOT IN (SELECT seq FROM skipped)"
        with self._in_words():
            for record in self._db.execute(f"{query} ORDER BY seq"):
                yield record[1], decode_record(self._path, *record)

    def put_fact(self, name: str, value: str) -> None:
        """Keep one fact about the run, replacing an older one of this name."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def facts(self) -> dict[str, str]:
        """All facts about the run. Raises: RunError if the file is damaged."""
        with self._in_words():
            return dict(self._db.execute("SELECT name, value FROM facts ORDER BY name"))

    # -- payload: see durability/payload.py ---------------------------------------------------------------

    def put_row(self, group: int, row: bytes) -> None:
        """Keep the row (JSON) of a group, before all other payload of the group."""
        self._payload.put_row(group, row)

    def put_frames(self, message: Message, frames: tuple[bytes, ...], source: str = "") -> None:
        """Keep the buffers that came with a message; their sizes were checked by `codec.check_frames`.

        `source`: the worker that sent it.
        """
        self._payload.put_frames(message, frames, source)

    def fetch(self, message: Message) -> tuple[bytes, ...]:
        """Read the frames of an outgoing message. Raises: LocalError naming a piece that is not here."""
        return self._payload.fetch(message)

    def drop(self, groups: Iterable[int]) -> None:
        """Delete all payload of these groups, inside a transaction; frames that still come are not kept."""
        self._payload.drop(groups)

    def keep_samples(
        self, kept: KeepSamples, most_bytes: int, corrections: Mapping[TrajectoryId, Corrections] = NONE
    ) -> None:
        """Copy the payload of these groups, inside a transaction; the oldest samples go if there is no room.

        `corrections`: what the trainer computed for their tokens.
        Raises: RunError or LocalError, with nothing written, if their payload is not here whole.
        """
        piece = self._payload.piece
        keep_samples(
            self._db, kept.step, kept.groups, piece=piece, most_bytes=most_bytes, corrections=corrections
        )

    def drop_undone(self, first: int, *, steps: int, evaluated: Collection[object]) -> None:
        """Delete what is left of event `first` and later ones, which are undone, inside a transaction.

        That is snapshots of the core after them, and samples of train steps after `steps` and of evaluations
        of versions that are not in `evaluated`.
        """
        self._db.execute("DELETE FROM snapshots WHERE seq >= ?", (first,))
        drop_samples(self._db, steps, evaluated)

    def settle(self) -> None:
        """Write some of what was scored in one piece each, inside a transaction."""
        self._payload.settle()

    def keep_only(self, groups: Iterable[int]) -> dict[int, bytes]:
        """Delete the payload of all other groups, inside a transaction; returns the rows of these."""
        return self._payload.keep_only(groups)

    def keep_tokens(self, known: Known) -> None:
        """Delete every response beyond these counts, inside a transaction."""
        self._payload.keep_tokens(known)


def check_schema(db: sqlite3.Connection, path: str) -> None:
    """Refuse a database that this release did not make.

    Raises: OtherRelease, or sqlite3.Error if it is none.
    """
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found != SCHEMA_VERSION:
        raise OtherRelease(
            f"{path} has schema {found}; expected {SCHEMA_VERSION}. It was written by another release of "
            "StaleFlow, which can read it, or by another program."
        )
    foreign = db.execute("SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
    if foreign is not None:  # which would run what somebody has put into the file
        raise OtherRelease(
            f"{path} has the {foreign[0]} {foreign[1]}; expected tables alone. It was changed by another "
            "program: use the file as the run wrote it."
        )


def mark_of(db: sqlite3.Connection, number: int) -> list[tuple[float, int]]:
    """The time and checksum of event `number` and of the one before, if they are kept.

    They tell one history from another. The one before may be separated from it later (`Store.separate`).
    """
    query = "SELECT now, checksum FROM events WHERE seq IN (?, ?) ORDER BY seq"
    return db.execute(query, (number - 1, number)).fetchall()


def decode_record(path: str, number: int, now: float, data: bytes, checksum: int, is_joined: int) -> Event:
    """The event of one record. Raises: RunError that names the record; OtherRelease if it is whole."""
    if not is_whole(checksum, event_checksum, number, now, data, is_joined):
        raise RunError(
            f"Event {number} of {path} cannot be replayed: it has changed since it was written. Look at the "
            f"disk, and {way_on(Path(path))}"
        )
    try:
        return decode_event(data)
    except RemoteError as error:
        raise OtherRelease(f"Event {number} of {path} cannot be replayed: {error}") from error
