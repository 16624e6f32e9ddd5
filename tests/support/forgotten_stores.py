"""Closes each store that a test made and forgot, when nobody holds it any more.

From Python 3.13 on, SQLite warns of a connection that is left open, and a warning fails a test. Those that
our own code leaves open are not closed here, so that they still do.
"""

import sqlite3
import sys
import weakref
from contextlib import suppress
from functools import wraps
from pathlib import Path

from controller.durability.store import Store

TESTS = Path(__file__).parent.parent


def close_forgotten_stores() -> None:
    """From now on, and in this process."""
    begin = Store.__init__

    @wraps(begin)
    def noted(store: Store, *arguments, **keys) -> None:
        begin(store, *arguments, **keys)
        if Path(sys._getframe(1).f_code.co_filename).is_relative_to(TESTS):
            weakref.finalize(store, close, store.database)

    Store.__init__ = noted  # type: ignore[method-assign]


def close(db: sqlite3.Connection) -> None:
    """Close it; where garbage is collected in another thread, which may not, it was closed before."""
    with suppress(sqlite3.ProgrammingError):
        db.close()
