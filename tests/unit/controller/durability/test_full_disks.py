"""A disk without room ends a transaction in words, and what was written before stays."""

import sqlite3

import pytest

from controller.core.events import Started, Tick
from controller.durability.store import Store
from protocol.errors import RunError


def put_rows(store, count):
    with store.transaction():
        for group in range(count):
            store.put_row(group, bytes(4096))


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path):
    store = Store(tmp_path / "run.db")
    with store.transaction():
        store.append_events(0.0, [(Started(), False)])
    pages = store.database.execute("PRAGMA page_count").fetchone()[0]
    store.database.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(RunError, match=r"run\.db failed: .*full.*Free some space"):
        put_rows(store, 100)
    store.database.execute("PRAGMA max_page_count = 1000000")
    with store.transaction():
        store.append_events(1.0, [(Tick(), False)])
    store.close()
    with sqlite3.connect(tmp_path / "run.db") as db:
        assert db.execute("SELECT seq, now FROM events").fetchall() == [(1, 0.0), (2, 1.0)]
        assert db.execute("SELECT count(*) FROM payload").fetchone() == (0,)
    db.close()
