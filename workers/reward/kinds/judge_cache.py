"""Numbers that a judge has given, by digest of request and pattern, in the run directory for its processes.

Invariants: the cache holds digests and numbers, and no text; if it cannot be read or written, requests are
sent again and no reward changes; numbers in the file are not kept in memory, so memory does not grow with it.
"""

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.files import is_dir

logger = logging.getLogger(__name__)

FILE = "judge.db"
WAIT_S = 5.0  # for another process that writes
PAUSE_S = 0.02  # between two tries, as long as another process opens the file for the first time
MOST_IN_MEMORY = 1 << 16  # numbers, of some 250 bytes each, if there is no file; the oldest go first
TABLE = "CREATE TABLE IF NOT EXISTS numbers (digest TEXT PRIMARY KEY, number REAL NOT NULL) WITHOUT ROWID"


def digest_of(url: str, body: Mapping[str, Any], pattern: str) -> str:
    """Stands for a request, and for the regular expression that reads the number in its answer."""
    return hashlib.sha256(json.dumps([url, body, pattern], sort_keys=True).encode()).hexdigest()


class JudgeCache:
    """The cache of one process: a file in `run_dir`, or memory where that is no folder (on another host)."""

    def __init__(self, run_dir: str) -> None:
        self._numbers: dict[str, float] = {}
        self._database: sqlite3.Connection | None = None
        if run_dir and is_dir(run_dir):
            try:
                self._database = sqlite3.connect(Path(run_dir) / FILE, timeout=WAIT_S, isolation_level=None)
                _prepare(self._database)
            except sqlite3.Error as error:
                self._give_up(error)

    def get(self, digest: str) -> float | None:
        """The number for this request; None if it is not cached."""
        if self._database is not None:
            try:
                query = "SELECT number FROM numbers WHERE digest = ?"
                row = self._database.execute(query, (digest,)).fetchone()
            except sqlite3.Error as error:
                self._give_up(error)
            else:
                return None if row is None else row[0]
        return self._numbers.get(digest)

    def put(self, digest: str, number: float) -> None:
        """Store a number."""
        if self._database is not None:
            try:
                self._database.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (digest, number))
            except sqlite3.Error as error:
                self._give_up(error)
            else:
                return
        self._numbers[digest] = number
        if len(self._numbers) > MOST_IN_MEMORY:
            del self._numbers[next(iter(self._numbers))]

    def _give_up(self, error: sqlite3.Error) -> None:
        logger.warning("The judge's cache %s cannot be used (%s); requests are sent again.", FILE, error)
        self.close()

    def close(self) -> None:
        """Keep numbers in memory from now on."""
        if self._database is not None:
            self._database.close()
            self._database = None


def _prepare(database: sqlite3.Connection) -> None:
    """Make the table. Raises: sqlite3.Error.

    SQLite does not wait where another process has begun to write and the mode of the journal is to change.
    """
    until = time.monotonic() + WAIT_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute(TABLE)
            return
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not is_busy or time.monotonic() > until:
                raise
        time.sleep(PAUSE_S)
