"""A run is taken up from its newest snapshot, and from its journal where that does not count."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.config.strategies import load_strategies
from controller.core.commands import ReportStep
from controller.core.core import Core
from controller.durability import snapshots
from controller.durability.image.freezer import Freezer
from controller.durability.recording import Recording
from controller.durability.release import release
from controller.durability.replay import replay, verdict_in_words
from controller.durability.snapshots import Snapshots
from controller.durability.store import Store
from controller.host.resume import read_past
from controller.host.resumed_run import ResumedRun
from protocol.errors import RunError
from tests.support.answered_run import AnsweredRun

EVERY = 25


class Photographed(AnsweredRun):
    """A run with a snapshot after every 25 events."""

    def __init__(self, path: Path, *, is_compact: bool = False) -> None:
        super().__init__(path, steps=6)
        with self.store.transaction():
            self.store.put_fact("release", json.dumps(release()))
        self.snapshots = Snapshots(self.store, is_compact=is_compact)
        self.pictures: list[int] = []

    def answer(self, command) -> None:
        super().answer(command)
        if isinstance(command, ReportStep):
            self.snapshots.add_line(command.metrics)

    def to_the_end(self, *, max_events: int = 10_000, flush: bool = True) -> None:
        while self.inbox and self.events < max_events:
            self.photograph(max_events)
        self.store.close()

    def photograph(self, max_events: int) -> None:
        """Go on to the next snapshot."""
        close, self.store.close = self.store.close, lambda: None  # type: ignore[method-assign]  # as each part does
        super().to_the_end(max_events=min(max_events, self.events + EVERY))
        self.store.close = close  # type: ignore[method-assign]
        with self.store.transaction():
            self.snapshots.take(self.core, number=self.events, now=self.now)
        self.pictures.append(self.events)


def snapshots_of(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return [seq for (seq,) in db.execute("SELECT seq FROM snapshots ORDER BY seq")]


def past(run: AnsweredRun, folder: Path) -> ResumedRun:
    found = read_past(folder, run.config)
    assert found is not None
    return found


def image(core: Core) -> bytes:
    return Freezer().freeze(core)


def test_a_run_taken_up_from_a_snapshot_is_the_one_taken_up_from_its_journal(tmp_path):
    run = Photographed(tmp_path / "run.db")
    run.to_the_end(max_events=60)
    short = past(run, tmp_path)
    assert short.replayed == 0
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("DELETE FROM snapshots")
    db.close()
    whole = past(run, tmp_path)
    assert whole.replayed == 60
    assert image(short.core) == image(whole.core) == image(run.core)
    assert short.now == whole.now
    assert len(short.metrics()) >= 2
    assert short.metrics() == whole.metrics()
    assert (short.lines, whole.saved_lines) == ([], [])
    assert short.newest_line == whole.newest_line == whole.lines[-1]


@pytest.mark.parametrize("harm", ["image = zeroblob(100)", "release = '{}'"])
def test_a_snapshot_that_is_damaged_or_of_another_release_does_not_count(tmp_path, harm):
    run = Photographed(tmp_path / "run.db")
    run.to_the_end(max_events=60)
    newest, older = run.pictures[-1], run.pictures[-2]
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute(f"UPDATE snapshots SET {harm} WHERE seq = {newest}")
    db.close()
    found = past(run, tmp_path)
    assert found.replayed == newest - older
    assert image(found.core) == image(run.core)
    assert [json.loads(line)["step"] for line in found.metrics()] == list(range(1, run.core.state.steps + 1))


def test_two_snapshots_are_kept_and_the_journal_is_whole(tmp_path):
    run = Photographed(tmp_path / "run.db")
    run.to_the_end()
    with sqlite3.connect(tmp_path / "run.db") as db:
        assert [seq for (seq,) in db.execute("SELECT seq FROM snapshots")] == run.pictures[-2:]
    db.close()
    with Recording(tmp_path) as recording:
        assert replay(recording).events == run.events


def test_a_compact_journal_begins_with_a_snapshot_and_replays_from_there(tmp_path):
    run = Photographed(tmp_path / "run.db", is_compact=True)
    run.to_the_end()
    with Recording(tmp_path) as recording:
        assert recording.pruned == run.pictures[-2]
        assert next(recording.events()).number == recording.pruned + 1
        verdict = replay(recording)
        assert verdict.is_equal
        assert (verdict.events, verdict.steps) == (run.events, 6)
        assert f"The first {recording.pruned} events were deleted" in verdict_in_words(verdict, recording)
    assert [json.loads(line)["step"] for line in past(run, tmp_path).metrics()] == list(range(1, 7))


@pytest.mark.parametrize("is_compact_again", [False, True])
def test_a_journal_that_was_compact_keeps_the_snapshot_that_it_begins_with(tmp_path, is_compact_again):
    run = Photographed(tmp_path / "run.db", is_compact=True)
    for number in (10, 20, 30):
        run.photograph(number)
    first = run.pictures[-2]
    run.snapshots = Snapshots(run.store, is_compact=False)
    for number in (40, 50):
        run.photograph(number)
    assert snapshots_of(tmp_path) == [first, *run.pictures[-2:]]
    with Recording(tmp_path) as recording:
        assert recording.pruned == first
        assert replay(recording).is_equal
    run.snapshots = Snapshots(run.store, is_compact=is_compact_again)
    run.to_the_end()
    begins = run.pictures[-2] if is_compact_again else first
    assert snapshots_of(tmp_path) == sorted({begins, *run.pictures[-2:]})
    with Recording(tmp_path) as recording:
        assert recording.pruned == begins
        assert replay(recording).events == run.events


def test_a_compact_journal_of_another_release_is_refused(tmp_path):
    run = Photographed(tmp_path / "run.db", is_compact=True)
    run.to_the_end()
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("UPDATE snapshots SET release = '{}'")
    db.close()
    with pytest.raises(RunError, match=r"begins after event .* another release"):
        past(run, tmp_path)


def test_snapshots_come_by_events_or_bytes_and_take_a_hundredth_of_the_time(tmp_path, monkeypatch):
    store = Store(":memory:")
    made = Snapshots(store, is_compact=False, unsaved_events=snapshots.EVENTS - 10)
    assert not made.is_due(events=9, journal_bytes=0, now=0.0)
    assert made.is_due(events=1, journal_bytes=0, now=0.0)
    with store.transaction():
        config = Photographed(tmp_path / "run.db").config
        made.take(Core(config, load_strategies(config)), number=1, now=0.0)
    assert not made.is_due(events=snapshots.EVENTS, journal_bytes=0, now=99 * made.pause_s)
    assert made.is_due(events=0, journal_bytes=0, now=101 * made.pause_s)
    again = Snapshots(store, is_compact=False)
    assert again.is_due(events=1, journal_bytes=snapshots.JOURNAL_BYTES, now=0.0)
