"""A run's file is read whole, by whoever may read it, and refused in words if it is something else."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from controller.config.models import Config
from controller.core.events import RULES, Started
from controller.durability import recording as recording_module
from controller.durability.fingerprint import NOTHING
from controller.durability.recording import Recording
from controller.durability.release import release
from controller.durability.store import SCHEMA_VERSION, Store
from protocol.errors import RunError
from tests.support.answered_run import OTHER_RELEASE, AnsweredRun
from tests.support.recorded_run import record

ROOT = Path(__file__).resolve().parents[4]


def test_a_finished_run_is_read_without_leaving_a_trace(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    for path in (tmp_path, tmp_path / "run.db"):
        with Recording(path) as recording:
            history = list(recording.events())
            assert recording.config().run.steps == 1
        assert [recorded.number for recorded in history] == list(range(1, len(history) + 1))
        assert history[0].event == Started(RULES)
        assert history[0].fingerprint not in (None, NOTHING)
        assert None not in [recorded.fingerprint for recorded in history]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_run_of_another_user_is_refused_as_one(tmp_path):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.db"
        AnsweredRun(path, steps=1).to_the_end()
        Path(folder).chmod(0o755)
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(RunError, match=r"run\.db cannot be read by you: .* ask the owner for a copy"):
                Recording(folder)
        finally:
            os.setresuid(0, 0, 0)


def test_a_fingerprint_belongs_to_its_own_event_when_others_are_missing(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    with Recording(tmp_path) as recording:
        whole = [recorded.fingerprint for recorded in recording.events()]
    db = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    db.execute("DELETE FROM fingerprints WHERE first_seq IN (1, 4, 5)")
    db.close()
    with Recording(tmp_path) as recording:
        found = [recorded.fingerprint for recorded in recording.events()]
    assert found == [None if number in (1, 4, 5) else digest for number, digest in enumerate(whole, 1)]


def test_a_run_that_goes_on_is_read_as_it_stood_at_the_opening(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=1)
    run.store.close = lambda: None  # the run goes on
    run.to_the_end(max_events=7, flush=False)
    with Recording(tmp_path) as recording:
        events = recording.events()
        first = next(events)
        run.to_the_end(max_events=9, flush=False)
        assert [recorded.fingerprint is None for recorded in [first, *events]] == [False] * 6 + [True]
    with Recording(tmp_path) as recording:
        assert len(list(recording.events())) == 9
    Store.close(run.store)


def test_a_copy_with_its_log_where_nothing_can_be_written_says_what_to_do(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=1)
    run.store.close = lambda: None  # the run goes on
    run.to_the_end(max_events=7, flush=False)
    look = (
        "import os, sys; from controller.durability.recording import Recording\n"
        "if not os.geteuid(): os.setgid(65534); os.setuid(65534)\n"
        "try: print(Recording(sys.argv[1]).last)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    with TemporaryDirectory() as folder:  # pytest's own are for one user alone
        for name in ("run.db", "run.db-wal"):
            (Path(folder) / name).write_bytes((tmp_path / name).read_bytes())
        told = []
        for mode in (0o555, 0o777):
            Path(folder).chmod(mode)
            told.append(subprocess.check_output([sys.executable, "-c", look, folder], cwd=ROOT, text=True))
        Path(folder).chmod(0o700)
    Store.close(run.store)
    assert told[1] == "7\n", "where it may write, SQLite makes what is missing"
    assert told[0].startswith("RunError ")
    assert "Copy run.db and run.db-wal into a folder that you may write to" in told[0]
    assert "disk" not in told[0]


def test_the_code_that_made_a_run_is_compared_with_the_code_here(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=1, release=OTHER_RELEASE)
    with Recording(tmp_path) as recording:
        assert "sources None there and " in recording.other_release()
    with run.store.transaction():
        run.store.put_fact("release", json.dumps(release()))
    with Recording(tmp_path) as recording:
        assert recording.other_release() == ""
    run.store.close()


def test_a_file_that_holds_nothing_is_said_to_and_not_to_be_another_releases(tmp_path):
    (tmp_path / "run.db").touch()
    with pytest.raises(RunError, match=r"holds nothing: either its run has not begun.* from a backup"):
        Recording(tmp_path)
    assert (tmp_path / "run.db").read_bytes() == b""


@pytest.mark.parametrize("schema", [0, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_a_file_of_another_schema_is_refused_by_reader_and_writer_and_not_touched(tmp_path, schema):
    db = sqlite3.connect(tmp_path / "run.db")
    db.execute("CREATE TABLE theirs (a)")
    db.execute(f"PRAGMA user_version = {schema}")
    db.close()
    before = (tmp_path / "run.db").read_bytes()
    for opened in (Recording, Store):
        with pytest.raises(RunError, match=f"has schema {schema}; expected {SCHEMA_VERSION}"):
            opened(tmp_path / "run.db")
    assert (tmp_path / "run.db").read_bytes() == before


def test_what_is_no_run_is_refused_in_words(tmp_path):
    with pytest.raises(RunError, match=r"There is no run at .*nowhere"):
        Recording(tmp_path / "nowhere")
    Store(tmp_path / "run.db").close()
    with pytest.raises(RunError, match="does not say config, run_dir, import_paths, release"):
        Recording(tmp_path)
    (tmp_path / "run.db").write_bytes(b"x" * 4096)
    with pytest.raises(RunError, match="not a database"):
        Recording(tmp_path)


def test_a_hole_in_the_history_and_a_foreign_configuration_are_named(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    db = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    db.execute("DELETE FROM events WHERE seq = 5")
    db.execute("""UPDATE facts SET value = '{"run": {"stesp": 1}}' WHERE name = 'config'""")
    db.close()
    with Recording(tmp_path) as recording:
        with pytest.raises(RunError, match=r"Event 5 of .* is missing \(the next is 6\)"):
            list(recording.events())
        with pytest.raises(RunError, match=r"does not fit this release: run\.stesp"):
            recording.config()


def effort(path, monkeypatch):
    """Instructions of SQLite's machine, in tens, that a look at a file takes."""
    done = []
    connect = sqlite3.connect

    def counted(*words, **more):
        db = connect(*words, **more)
        db.set_progress_handler(lambda: done.append(1), 10)
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", counted)
        Recording(path)
    return len(done)


def test_a_look_takes_no_longer_in_a_longer_run(tmp_path, monkeypatch):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    before = effort(tmp_path, monkeypatch)
    with sqlite3.connect(tmp_path / "run.db") as db:
        (last,) = db.execute("SELECT max(seq) FROM events").fetchone()
        for times in range(1, 100):
            db.execute(
                "INSERT INTO events SELECT seq + ?, now + ?, event, checksum, is_joined FROM events "
                "WHERE seq <= ?",
                (last * times, 100 * times, last),
            )
    db.close()
    assert Recording(tmp_path).last == 100 * last
    assert effort(tmp_path, monkeypatch) <= before + 5


def test_events_that_hold_some_bytes_are_read_part_by_part_and_it_is_told_how_far(tmp_path, monkeypatch):
    record(tmp_path / "run", Config.model_validate({"run": {"steps": 2}}))
    told = []
    recording = Recording(tmp_path / "run", on_progress=lambda number, last: told.append(number))
    whole = [*recording.events_with(b"\x01", after=0)]
    assert told == [0]
    monkeypatch.setattr(recording_module, "AT_ONCE", 7)
    assert [*recording.events_with(b"\x01", after=0)] == whole
    assert told[1:] == [0, *(one.number for one in whole[6::7])]
    assert 7 < len(whole) < recording.last


def test_the_event_of_a_second_is_the_last_up_to_it(tmp_path):
    record(tmp_path / "run", Config.model_validate({"run": {"steps": 2}}))
    with Recording(tmp_path / "run") as recording:
        times = [0.0, *(recorded.now for recorded in recording.events())]
        for now in (-1.0, 0.0, times[1], times[len(times) // 2], times[-1] - 1e-6, times[-1], 1e9):
            expected = max((number for number, at in enumerate(times) if at <= now), default=0)
            assert recording.number_at(now) == expected
