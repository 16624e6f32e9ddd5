"""A run's file read for replay: what the core was built from, and the history that it was given.

Invariants: nothing is written, neither to the file nor beside it, unless the run goes on (then SQLite keeps
its shared index there); one consistent state of the file is read, however far the run goes meanwhile.
"""

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import ValidationError

from controller.config import Config
from controller.core import Core
from controller.core_image import thaw
from controller.events import Event
from controller.fingerprint import SIZE_BYTES
from controller.release import release
from controller.store import Store, broken, check_schema, decode_numbered, digest
from protocol.errors import RunError

NEEDED_FACTS = ("config", "run_dir", "import_paths", "release")


class Recorded(NamedTuple):
    """One event of the history."""

    number: int  # place in the history, from 1
    now: float  # seconds since the run began
    event: Event
    fingerprint: bytes | None  # of the commands that it gave; None: not written (yet)


class Snapshot(NamedTuple):
    """The core as it was at one moment of the run."""

    number: int  # of the last event that it has seen
    now: float
    core: Core


class Recording:
    """The file of a run, finished or not; a context manager."""

    def __init__(self, run: str | Path) -> None:
        """Open a run directory or its run.db. Raises: RunError if this release cannot read it."""
        path = Path(run)
        file = path / "run.db" if path.is_dir() else path
        if not file.is_file():
            raise RunError(
                f"There is no run at {run} (looked for {file}). Expected a run directory, such as "
                "runs/quickstart, or the run.db in it."
            )
        self.path = str(file)
        live = file.with_name(f"{file.name}-wal").exists()
        try:
            self._db = sqlite3.connect(
                f"{file.resolve().as_uri()}?{'mode=ro' if live else 'immutable=1'}",
                uri=True,
                isolation_level=None,
            )
            check_schema(self._db, self.path)
            self._db.execute("BEGIN")
            self._look()
        except sqlite3.Error as error:
            raise broken(self.path, error) from error
        missing = [name for name in NEEDED_FACTS if name not in self.facts]
        if missing:
            self.close()
            raise RunError(
                f"{self.path} does not say {', '.join(missing)}, which every run writes when it begins. It "
                "is another program's, or its controller was killed before it had begun."
            )

    @classmethod
    def live(cls, store: Store) -> "Recording":
        """What the controller itself has written up to now; there is nothing to close."""
        made = cls.__new__(cls)
        made.path, made._db = store.path, store.database
        made._look()
        return made

    def _look(self) -> None:
        self.facts: dict[str, str] = dict(self._db.execute("SELECT name, value FROM facts"))
        self.skipped: dict[int, str] = dict(self._db.execute("SELECT seq, reason FROM skipped ORDER BY seq"))
        """Events that count as never heard, and why: what the core failed with; "" if one of the same worker
        before it did."""
        (first,) = self._db.execute("SELECT coalesce(min(seq), 1) FROM events").fetchone()
        snapshots = [seq for (seq,) in self._db.execute("SELECT seq FROM snapshots ORDER BY seq")]
        self.pruned: int = first - 1 if first - 1 in snapshots else 0
        """Events that `run.journal: compact` has deleted; a snapshot of the core after them is kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @property
    def release(self) -> dict[str, str]:
        """What `controller.release` said where the run was made."""
        return json.loads(self.facts["release"])

    def other_release(self) -> str:
        """How the code that made the run differs from the code here; "" if it does not."""
        made, here = self.release, release()
        return ", ".join(
            f"{name} {made.get(name)} there and {here.get(name)} here"
            for name in here
            if made.get(name) != here.get(name)
        )

    def config(self) -> Config:
        """The run's configuration. Raises: RunError if this release does not know it."""
        try:
            return Config.model_validate_json(self.facts["config"])
        except ValidationError as error:
            first = error.errors()[0]
            raise RunError(
                f"The configuration in {self.path} does not fit this release: "
                f"{'.'.join(map(str, first['loc']))}: {first['msg']}. The run was made by {self.release}; "
                "use that release."
            ) from error

    def make_core(self, config: Config | None = None) -> Core:
        """The core as the run built it, or as it was before the first event that is kept; or a new one with
        another configuration.

        Folders with the user's strategies are put on sys.path. Raises: ConfigError if one cannot be imported;
        RunError if the beginning was deleted by another release.
        """
        if config is None and self.pruned:
            found = self.snapshot(self.pruned)
            if found is None:
                raise RunError(
                    f"{self.path} begins after event {self.pruned} (run.journal is compact), with a snapshot "
                    f"that another release made or that is damaged: {self.other_release()}. Use the release "
                    "that made it."
                )
            return found.core
        return self._fresh_core(config or self.config())

    def snapshot(self, number: int | None = None) -> "Snapshot | None":
        """The newest snapshot that this release made and that is whole, or the one after event `number`."""
        query = "SELECT seq, now, release, digest, image FROM snapshots ORDER BY seq DESC"
        for seq, now, made_by, expected, image in self._db.execute(query):
            is_ours = json.loads(made_by) == release() and digest(image) == expected
            if is_ours and number in (None, seq):
                return Snapshot(seq, now, thaw(image, self._fresh_core(self.config())))
        return None

    def lines(self, steps: int) -> list[dict[str, object]]:
        """The first lines of metrics.jsonl, as far as snapshots have them."""
        rows = self._db.execute("SELECT line FROM lines WHERE step <= ? ORDER BY step", (steps,))
        return [json.loads(line) for (line,) in rows]

    def _fresh_core(self, config: Config) -> Core:
        import_paths = tuple(json.loads(self.facts["import_paths"]))
        sys.path.extend(path for path in import_paths if path not in sys.path)
        return Core(config, run_dir=self.facts["run_dir"], import_paths=import_paths)

    def events(self, after: int | None = None, until: int | None = None) -> Iterator[Recorded]:
        """The history in order, all that is kept or what follows event `after`, up to event `until`; without
        what was skipped.

        Raises: RunError naming the first record that is damaged or missing.
        """
        after = self.pruned if after is None else after
        fingerprints = self._fingerprints(after)
        of, expected_digest = next(fingerprints, (0, b""))
        try:
            rows = self._db.execute("SELECT seq, now, event FROM events WHERE seq > ? ORDER BY seq", (after,))
            for expected, (number, now, data) in enumerate(rows, after + 1):
                if number != expected:
                    raise RunError(
                        f"Event {expected} of {self.path} is missing (the next is {number}); a history is "
                        "whole or worthless. Restore the file from a backup."
                    )
                if until is not None and number > until:
                    return
                if number in self.skipped:
                    continue
                event = decode_numbered(number, data, self.path)
                while 0 < of < number:
                    of, expected_digest = next(fingerprints, (0, b""))
                yield Recorded(number, now, event, expected_digest if of == number else None)
        except sqlite3.Error as error:
            raise broken(self.path, error) from error

    def _fingerprints(self, after: int) -> Iterator[tuple[int, bytes]]:
        query = "SELECT first_seq, digests FROM fingerprints WHERE first_seq > ? ORDER BY first_seq"
        for first, digests in self._db.execute(query, (after,)):
            for i in range(len(digests) // SIZE_BYTES):
                yield first + i, digests[SIZE_BYTES * i : SIZE_BYTES * (i + 1)]
