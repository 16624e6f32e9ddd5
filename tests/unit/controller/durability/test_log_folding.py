"""A log that has grown is folded beside the loop, and nothing depends on it."""

import logging
import shutil
import sqlite3
from contextlib import closing

import pytest

from controller.core.events import StopRequested
from controller.durability import store as module
from controller.durability.store import (
    FOLD_BYTES,
    LONGEST_LOG_PAGES,
    LOOK_COMMITS,
    LogFolder,
    Store,
    may_fold_beside,
)

PATIENT_S = 60.0


@pytest.fixture
def is_safe(monkeypatch):
    """As with a newer SQLite; these tests write too little for its old fault."""
    monkeypatch.setattr(module, "may_fold_beside", lambda: True)


def write(store: Store, commits: int) -> None:
    """So many commits, of an event each that fills its share of the log."""
    text = "x" * (2 * FOLD_BYTES // LOOK_COMMITS)
    for _ in range(commits):
        with store.transaction():
            store.append_events(1.0, [(StopRequested(text), False)])


def in_file(path, copy) -> int:
    """Events that the file has without its log."""
    shutil.copy(path, copy)
    with closing(sqlite3.connect(copy)) as db:
        return db.execute("SELECT count(*) FROM events").fetchone()[0]


def test_a_long_log_is_folded_while_the_store_is_open_and_a_short_one_is_left(tmp_path, is_safe):
    path = tmp_path / "run.db"
    store = Store(path)
    write(store, LOOK_COMMITS - 1)
    assert store._folder is not None
    assert store._folder._thread is None
    write(store, 1)
    assert store._folder.folded.wait(PATIENT_S)
    assert in_file(path, tmp_path / "copy.db") >= LOOK_COMMITS
    write(store, 3)
    store.close()
    assert not path.with_name("run.db-wal").exists()
    assert in_file(path, tmp_path / "closed.db") == LOOK_COMMITS + 3


def test_commits_fold_a_log_themselves_once_it_is_very_long(tmp_path, is_safe):
    store = Store(tmp_path / "run.db")
    assert store.database.execute("PRAGMA wal_autocheckpoint").fetchone() == (LONGEST_LOG_PAGES,)
    store.close()


def test_a_fold_that_fails_is_said_once_and_holds_up_nothing(tmp_path, caplog):
    path = tmp_path / "run.db"
    path.write_bytes(b"no database at all, " * 1000)
    path.with_name("run.db-wal").write_bytes(bytes(FOLD_BYTES))
    folder = LogFolder(str(path), "NORMAL")
    with caplog.at_level(logging.WARNING, "staleflow.controller"):
        for _ in range(LOOK_COMMITS):
            folder.committed()
        assert folder._thread is not None
        folder._thread.join(PATIENT_S)
        for _ in range(LOOK_COMMITS):
            folder.committed()
    folder.close()
    assert not folder.folded.is_set()
    assert sum("is not folded beside the run" in record.getMessage() for record in caplog.records) == 1


def test_nothing_is_folded_of_a_run_that_is_kept_in_memory(is_safe):
    store = Store("", durability="off")
    write(store, 2 * LOOK_COMMITS)
    assert store._folder is None
    store.close()


@pytest.mark.parametrize(
    ("release", "is_safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 53, 0), True),
    ],
)
def test_where_two_connections_could_lose_a_commit_one_does_it_all(tmp_path, monkeypatch, release, is_safe):
    assert may_fold_beside(release) is is_safe
    monkeypatch.setattr(module, "may_fold_beside", lambda: is_safe)
    store = Store(tmp_path / "run.db")
    assert (store._folder is not None) is is_safe
    assert store.database.execute("PRAGMA wal_autocheckpoint").fetchone() == (
        (LONGEST_LOG_PAGES if is_safe else 1000),
    )
    store.close()
