"""Reads a run's file for replay: what the core was built from, and the events that it was given.

Invariants: nothing is written, neither to the file nor beside it, unless the run goes on (then SQLite keeps
its shared index there); one consistent state of the file is read, however far the run goes meanwhile; the
file is open only for moments, so that a run that ends can fold its write-ahead log away.
"""

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from controller.config.models import Config
from controller.config.strategies import load_strategies, with_moved_strategies
from controller.core.core import Core
from controller.core.events import Event
from controller.durability.damage import (
    FAILURES,
    broken,
    damaged,
    is_whole,
    line_checksum,
    snapshot_digest,
    way_on,
)
from controller.durability.event_codec import TAG_PLACE
from controller.durability.fingerprint import SIZE_BYTES
from controller.durability.image.packed import unpack
from controller.durability.image.thawer import thaw
from controller.durability.release import (
    RELEASES,
    ReleasePart,
    differences,
    differences_of,
    known_config,
    parts_of,
    release,
)
from controller.durability.sample_records import KeptSample, read_sample, sample_keys
from controller.durability.store import RECORD, Store, check_schema, decode_record, mark_of
from protocol.errors import OtherRelease, RunError
from protocol.files import exists, is_dir, is_file
from strategies.kinds import Strategies

AT_ONCE = 1000  # events that are read each time the file is opened
Fact = TypeVar("Fact")
NEEDED_FACTS = ("config", "run_dir", "import_paths", "release")


class Recorded(NamedTuple):
    """One event of the history."""

    number: int  # place in the history, from 1
    now: float  # seconds since the run began
    event: Event
    fingerprint: bytes | None  # of the commands that it gave; None: not written, or not yet
    is_joined: bool = False  # the core heard it, and decided only after a later one


class Snapshot(NamedTuple):
    """The core as it was at one moment of the run."""

    number: int  # of the last event that the core had heard
    now: float
    core: Core


class _Damaged(Exception):
    """A snapshot is not what was written."""


class Recording:
    """The file of a run, finished or not; a context manager."""

    def __init__(
        self, run: str | Path, *, on_progress: Callable[[int, int], None] = lambda number, last: None
    ) -> None:
        """Open a run directory or its run.db. Raises: RunError if this release cannot read it.

        `on_progress(number, last)` hears now and then which event of how many is being read.
        """
        path = Path(run)
        file = path / "run.db" if is_dir(path) else path
        if not is_file(file):
            expected = "a run directory, such as runs/quickstart, or the run.db in it"
            raise RunError(f"There is no run at {run} (looked for {file}). Expected {expected}.")
        self.path = str(file)
        self._file, self._on_progress = file, on_progress
        self._database: sqlite3.Connection | None = None  # of the store that writes the file
        with self._open() as db:
            if db.execute("SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)").fetchone()[0]:
                raise RunError(
                    f"{self.path} holds nothing: either its run has not begun, and then wait for it; or the "
                    f"file was emptied. Expected what the run wrote: {way_on(file)}"
                )
            check_schema(db, self.path)
            self._look(db)
        if bad := [name for name, value in self.facts.items() if not isinstance(value, str)]:
            raise damaged(self.path, f"what it says of {bad[0]} is no text")
        missing = [name for name in NEEDED_FACTS if name not in self.facts]
        if missing:
            raise RunError(
                f"{self.path} does not say {', '.join(missing)}, which every run writes when it begins. It "
                "is another program's, or its controller was killed before it had begun."
            )

    @classmethod
    def live(cls, store: Store) -> "Recording":
        """Read what this controller has written up to now; nothing has to be closed."""
        made = cls.__new__(cls)
        made.path, made._file, made._database = store.path, Path(store.path), store.database
        made._on_progress = lambda number, last: None
        with made._open() as db:
            made._look(db)
        return made

    def _look(self, db: sqlite3.Connection) -> None:
        self.notes: list[str] = []
        """What was damaged and done without, in words."""
        self.facts: dict[str, str] = dict(db.execute("SELECT name, value FROM facts"))
        skipped = db.execute("SELECT seq, reason FROM skipped ORDER BY seq")
        self.skipped: dict[int, str] = dict(skipped)
        """Events that count as never heard, and why: what the core failed with; "" if one of the same worker
        before it did."""
        (first,) = db.execute("SELECT coalesce(min(seq), 1) FROM events").fetchone()
        end = db.execute("SELECT seq, now FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        self.last, self.until_s = end or (0, 0.0)  # no aggregate of `now`: that walks over all events
        self.end = mark_of(db, self.last)
        """The mark of the last event."""
        newest = "SELECT first_seq, length(digests) FROM fingerprints ORDER BY first_seq DESC LIMIT 1"
        at, size = db.execute(newest).fetchone() or (1, 0)
        self.snapshot_numbers = [seq for (seq,) in db.execute("SELECT seq FROM snapshots ORDER BY seq")]
        """Events after which there is an image of the core, of whatever release."""
        self._fingerprinted = at + size // SIZE_BYTES - 1  # the last event that had one at the opening
        self.pruned: int = first - 1 if first - 1 in self.snapshot_numbers else 0
        """Events that `run.journal: compact` has deleted; a snapshot of the core after them is kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one short look. Raises: RunError if it is damaged."""
        try:
            with self._connected() as db:
                yield db
        except (*FAILURES, TypeError) as error:  # inside, nothing is done but to look at values of the file
            raise broken(self.path, error) from error

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        if self._database is not None:
            yield self._database
            return
        live = exists(self._file.with_name(f"{self._file.name}-wal"))
        uri = f"{self._file.resolve().as_uri()}?{'mode=ro' if live else 'immutable=1'}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None)
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.close()

    @property
    def release(self) -> dict[str, str]:
        """What `controller.release` said where the run was made."""
        return self._parsed("release", dict)

    @property
    def parts(self) -> list[ReleasePart]:
        """The parts of the run, each made by one release."""
        return parts_of(self.told(RELEASES, list, []), self.release)

    def other_release(self, number: int | None = None) -> str:
        """How the code that decided the run, or its event `number`, differs from that here; "" if not."""
        if number is None:
            return differences_of(self.parts, self.last)
        return next((differences(part.made) for part in reversed(self.parts) if part.first <= number), "")

    def config(self) -> Config:
        """The configuration that the run began with. Raises: OtherRelease if it is unknown here."""
        return known_config(self.facts["config"], f"The configuration in {self.path}", self.other_release())

    def make_core(self, config: Config | None = None) -> Core:
        """Make the core as the run built it, or as it was before the first event that is kept.

        With another configuration, make a new core.

        Raises: ConfigError if a strategy cannot be imported; RunError if the beginning was deleted by another
        release.
        """
        if config is None and self.pruned:
            found = self.snapshot(self.pruned)
            if found is None:
                raise OtherRelease(
                    f"{self.path} begins after event {self.pruned} (run.journal is compact), with a snapshot "
                    f"that another release made or that is damaged: {self.other_release()}."
                )
            return found.core
        return self._fresh_core(config or self.config())

    def snapshot(self, number: int | None = None) -> "Snapshot | None":
        """The newest snapshot that this release made and that is whole, or the one after event `number`.

        Raises: RunError.
        """
        return next(self.snapshots(number), None)

    def snapshots(self, number: int | None = None) -> "Iterator[Snapshot]":
        """Snapshots that this release made and that are whole, newest first.

        `number`: only the one after that event. Raises: RunError.
        """
        with self._open() as db:
            made = db.execute("SELECT seq FROM snapshots WHERE seq <= ? ORDER BY seq DESC", (self.last,))
            numbers = [seq for (seq,) in made if number in (None, seq)]
        for seq in numbers:
            try:
                now, made_by, image = self._read_snapshot(seq)
            except (sqlite3.DatabaseError, _Damaged):
                self.notes.append(
                    f"The snapshot after event {seq} of {self.path} is damaged and not used: an older one "
                    "is, or the journal from its beginning. Look at the disk."
                )
                continue
            if json.loads(made_by) == release():
                yield Snapshot(seq, now, thaw(unpack(image), self.strategies()))

    def snapshot_bytes(self, number: int) -> int:
        """Size of the snapshot after event `number`; 0 if there is none. Raises: RunError."""
        with self._open() as db:
            query = "SELECT length(image) FROM snapshots WHERE seq = ?"
            (size,) = db.execute(query, (number,)).fetchone() or (0,)
        return size

    def _read_snapshot(self, number: int) -> tuple[float, str, bytes]:
        query = "SELECT now, release, digest, image FROM snapshots WHERE seq = ?"
        with self._connected() as db:
            row = db.execute(query, (number,)).fetchone()
        now, made_by, expected, image = row or (0.0, "", b"", b"")
        if not is_whole(expected, snapshot_digest, number, now, made_by, image):
            raise _Damaged
        return now, made_by, image

    def lines(self, steps: int) -> list[str]:
        """The first lines of metrics.jsonl, as far as snapshots have them whole. Raises: RunError."""
        found: list[str] = []
        query = "SELECT step, line, checksum FROM lines WHERE step <= ? ORDER BY step"
        with self._open() as db:
            rows = db.execute(query, (steps,)).fetchall()
        for step, line, checksum in rows:
            if is_whole(checksum, line_checksum, step, line):
                found.append(line)
            else:
                text = f"The line of step {step} in {self.path} is damaged; metrics.jsonl is without it."
                self.notes.append(text)
        return found

    def sample_keys(self) -> list[tuple[int, int]]:
        """(step, group) of the samples that are kept now, oldest first. Raises: RunError."""
        with self._open() as db:
            return sample_keys(db)

    def sample(self, step: int, group: int) -> KeptSample | None:
        """Read one sample; None if it was deleted meanwhile. Raises: RunError if it is damaged."""
        with self._open() as db:
            return read_sample(db, self.path, step, group)

    def told(self, fact: str, kind: type[Fact], default: Fact) -> Fact:
        """The fact that the run keeps under this name, from JSON; or the default. Raises: RunError."""
        return self._parsed(fact, kind) if fact in self.facts else default

    def _parsed(self, fact: str, kind: type[Fact]) -> Fact:
        try:
            found = json.loads(self.facts[fact])
        except ValueError:
            raise damaged(self.path, f"what it says of {fact} is no JSON") from None
        if not isinstance(found, kind):
            raise damaged(self.path, f"what it says of {fact} is no {kind.__name__}")
        return found

    def strategies(self, config: Config | None = None) -> Strategies:
        """The run's, or those of another configuration; folders with the user's are put on sys.path.

        Raises: ConfigError if one cannot be imported.
        """
        sys.path.extend(path for path in self._import_paths() if path not in sys.path)
        places = self.facts["run_dir"], str(self._file.parent.absolute())
        return load_strategies(with_moved_strategies(config or self.config(), places=places))

    def _import_paths(self) -> tuple[str, ...]:
        return tuple(self._parsed("import_paths", list))

    def _fresh_core(self, config: Config) -> Core:
        strategies, run_dir = self.strategies(config), self.facts["run_dir"]
        return Core(config, strategies, run_dir=run_dir, import_paths=self._import_paths())

    def events(self, after: int | None = None, until: int | None = None) -> Iterator[Recorded]:
        """The history in order, without what was skipped.

        All that is kept, or what follows event `after`, up to event `until`.

        Raises: RunError naming the first record that is damaged or missing.
        """
        after = self.pruned if after is None else after
        last = self.last if until is None else min(until, self.last)
        while after < last:
            self._on_progress(after, last)
            with self._open() as db:
                query = f"SELECT {RECORD} FROM events WHERE seq > ? AND seq <= ?"
                rows = db.execute(f"{query} ORDER BY seq LIMIT ?", (after, last, AT_ONCE)).fetchall()
                fingerprints = self._fingerprints(db, after, after + len(rows))
            for expected, (number, now, data, checksum, is_joined) in enumerate(rows, after + 1):
                if number != expected:
                    raise self._missing(expected, number)
                if number not in self.skipped:
                    event = decode_record(self.path, number, now, data, checksum, is_joined)
                    yield Recorded(number, now, event, fingerprints.get(number), bool(is_joined))
            if not rows:
                raise self._missing(after + 1, None)
            after += len(rows)

    def events_with(self, *parts: bytes, after: int) -> Iterator[Recorded]:
        """Events after `after`, in order, whose record holds one of these byte strings; no fingerprints."""
        has_one = " OR ".join(["instr(event, ?)"] * len(parts))
        query = f"SELECT {RECORD} FROM events WHERE seq > ? AND seq <= ? AND ({has_one}) ORDER BY seq LIMIT ?"
        while after < self.last:
            self._on_progress(after, self.last)
            with self._open() as db:  # a short part may be in nearly all records, which no memory holds
                rows = db.execute(query, (after, self.last, *parts, AT_ONCE)).fetchall()
            for number, now, data, checksum, is_joined in rows:
                if number not in self.skipped:
                    event = decode_record(self.path, number, now, data, checksum, is_joined)
                    yield Recorded(number, now, event, None, bool(is_joined))
            after = rows[-1][0] if len(rows) == AT_ONCE else self.last

    def newest(self, kind: type[Event]) -> Recorded | None:
        """The newest event of this kind; None if none is kept."""
        with self._open() as db:
            query = f"SELECT {RECORD} FROM events WHERE seq <= ? AND substr(event, {TAG_PLACE}, 1) = ?"
            rows = db.execute(f"{query} ORDER BY seq DESC", (self.last, bytes([kind.tag])))
            found = next((row for row in rows if row[0] not in self.skipped), None)
        if found is None:
            return None
        number, now, data, checksum, is_joined = found
        event = decode_record(self.path, number, now, data, checksum, is_joined)
        return Recorded(number, now, event, None, bool(is_joined))

    def mark(self, number: int) -> list[tuple[float, int]]:
        """What tells the history up to event `number` from other histories: see `mark_of`."""
        with self._open() as db:
            return mark_of(db, number)

    def number_at(self, now: float) -> int:
        """The last event up to this second of the run.

        If there is none: the one before the first that is kept.
        """
        before, after = self.pruned, self.last + 1  # times ascend: a binary search
        with self._open() as db:
            while after - before > 1:
                middle = (before + after) // 2
                found = db.execute("SELECT now FROM events WHERE seq = ?", (middle,)).fetchone()
                if found is None:
                    raise self._missing(middle, None)
                before, after = (middle, after) if found[0] <= now else (before, middle)
        return before

    def _missing(self, expected: int, found: int | None) -> RunError:
        with self._open() as db:
            (first,) = db.execute("SELECT coalesce(min(seq), 1) FROM events").fetchone()
        if expected < first:
            return RunError(
                f"{self.path} was shortened while it was read: the run goes on with run.journal: compact, "
                f"and has deleted its events up to {first - 1}. Ask again."
            )
        text = "its events end there" if found is None else f"the next is {found}"
        return RunError(
            f"Event {expected} of {self.path} is missing ({text}); a history is whole or worthless. Look at "
            f"the disk, and {way_on(Path(self.path))}"
        )

    def _fingerprints(self, db: sqlite3.Connection, after: int, until: int) -> dict[int, bytes]:
        """Fingerprints by event, after one event up to another, as they were when the file was opened."""
        query = (
            "SELECT first_seq, digests FROM fingerprints WHERE first_seq <= ? AND "
            "first_seq >= (SELECT coalesce(max(first_seq), 0) FROM fingerprints WHERE first_seq <= ?)"
        )
        found: dict[int, bytes] = {}
        for first, digests in db.execute(query, (min(until, self._fingerprinted), after + 1)):
            for i in range(len(digests) // SIZE_BYTES):
                found[first + i] = digests[SIZE_BYTES * i : SIZE_BYTES * (i + 1)]
        return found
