"""Samples in run.db: what was trained, and no more room than they were given."""

import sqlite3

import pytest

from controller.core.commands import Send
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.core.state.kept_samples import KeptGroup
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.durability.sample_records import (
    SCHEMA,
    drop_samples,
    keep_samples,
    read_sample,
    sample_keys,
)
from controller.host.stepper import Stepper
from protocol.errors import RunError
from protocol.messages import GIVEN, Piece, Segment, Train, TrainItem
from tests.support.scripted import Disk, corrections
from tests.support.scripted_run import ScriptedRun, config_of, honest


def finished(tmp_path, *, steps=4, **samples):
    """A run that is over; what its trainer was sent, by step."""
    config = config_of(steps=steps, samples=samples) if samples else config_of(steps=steps)
    run = ScriptedRun(tmp_path / "run.db", config, honest(config, Disk()))
    trained, turn = {}, run.stepper.turn

    def watched(now, batch):
        wanted = turn(now, batch)
        for command in wanted:
            if isinstance(command, Send) and isinstance(command.message, Train):
                frames = tuple(map(bytes, run.store.fetch(command.message)))
                trained[command.message.train_version + 1] = command.message, frames
        return wanted

    run.stepper.turn = watched
    for name, role in (("r0", "rollout"), ("r1", "rollout"), ("s", "reward"), ("t", "trainer")):
        run.attach(name, role)
    run.run()
    run.close()
    return trained


def test_a_sample_is_what_was_trained(tmp_path):
    trained = finished(tmp_path)
    with Recording(tmp_path / "run.db") as recording:
        keys = recording.sample_keys()
        samples = [recording.sample(*key) for key in keys]
    assert sorted({sample.step for sample in samples}) == [1, 2, 3, 4]
    assert len(samples) == 8  # batches have two groups, and four may be kept
    for sample in samples:
        message, frames = trained[sample.step]
        items = [item for item in message.items if item.group == sample.group]
        assert [one["member"] for one in sample.facts["items"]] == [item.member for item in items]
        assert [one["reward"] for one in sample.facts["items"]] == [item.reward for item in items]
        assert sample.tokens in frames[1]
        assert sample.logprobs in frames[2]
        assert sample.prompt in frames[0]
        assert len(sample.tokens) == len(sample.logprobs) > 0
        assert (sample.trained, sample.weights) == corrections(len(sample.tokens) // 4)


def test_a_sample_of_an_agent_begins_with_given_tokens_and_has_no_prompt():
    segments = (Segment(1, GIVEN, 2), Segment(1, 3, 1), Segment(1, GIVEN, 1), Segment(2, 4, 2))
    item = TrainItem(7, 0, 0, 1.0, 0.5, "stop", segments)
    stored = {Piece("row", 7): b"{}"} | {
        piece: bytes([65 + place] * 4 * piece.count)
        for place, piece in enumerate(
            (Piece("tokens", 7, 0, 1, 4), Piece("tokens", 7, 0, 2, 2),
             Piece("logprobs", 7, 0, 1, 1), Piece("logprobs", 7, 0, 2, 2))
        )
    }  # fmt: skip
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    keep_samples(db, 5, [KeptGroup(7, "oldest", (item,), ())], piece=stored.__getitem__, most_bytes=10_000)
    kept = read_sample(db, "run.db", 5, 7)
    assert (kept.prompt, kept.tokens, kept.logprobs) == (b"", b"A" * 16 + b"B" * 8, b"C" * 4 + b"D" * 8)
    db.close()


def test_of_what_is_undone_no_sample_stays_and_of_evaluations_those_that_count_do():
    db, held_out = sqlite3.connect(":memory:"), FIRST_EVALUATION_GROUP
    db.executescript(SCHEMA)
    item = TrainItem(0, 0, 0, 1.0, 0.5, "stop", ())
    for step, group in ((2, 4), (3, 6), (3, held_out), (4, 8), (4, held_out + 2)):
        kept = KeptGroup(group, "oldest", (item,), ())
        keep_samples(db, step, [kept], piece=lambda piece: b"{}", most_bytes=10_000)
    drop_samples(db, 2, evaluated={2})  # of the newest version that counts; version 3 is undone
    assert sample_keys(db) == [(2, 4), (3, held_out)]
    db.close()


def test_the_room_is_looked_at_without_reading_the_samples():
    """A sum over the table itself reads every page of it, half a gigabyte at each step of a long run."""
    db, asked = sqlite3.connect(":memory:"), list[str]()
    db.executescript(SCHEMA)
    item = TrainItem(7, 0, 0, 1.0, 0.5, "stop", (Segment(1, 3, 1),))
    for step in range(3):
        db.set_trace_callback(asked.append if step == 2 else None)
        group = KeptGroup(step, "oldest", (item,), ())
        keep_samples(db, step, [group], piece=lambda wanted: b"1" * 100, most_bytes=700)
    db.set_trace_callback(None)
    looks = [words for words in asked if words.startswith("SELECT")]
    assert len(looks) == 3, looks
    for words in looks:
        plan = [detail for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {words}")]
        assert all("COVERING INDEX" in detail for detail in plan), (words, plan)
    db.close()


def test_none_are_kept_where_they_are_off(tmp_path):
    finished(tmp_path, groups=0)
    with Recording(tmp_path / "run.db") as recording:
        assert recording.sample_keys() == []


def test_a_run_with_samples_replays_bit_for_bit(tmp_path):
    finished(tmp_path)
    with Recording(tmp_path / "run.db") as recording:
        verdict = replay(recording)
    assert verdict.is_equal
    assert verdict.commands["KeepSamples"] == 4


def test_the_oldest_steps_go_when_there_is_no_room(tmp_path, monkeypatch):
    room = 4_000  # bytes: those of some steps

    def write(self):
        for one in self._samples:
            self._store.keep_samples(one, room)
        self._samples = []

    monkeypatch.setattr(Stepper, "_write_samples", write)
    finished(tmp_path, steps=6)
    db = sqlite3.connect(tmp_path / "run.db")
    (size,) = db.execute("SELECT sum(size) FROM samples").fetchone()
    steps = [step for (step,) in db.execute("SELECT DISTINCT step FROM samples ORDER BY step")]
    db.close()
    assert size <= room
    assert steps
    assert steps[-1] == 6
    assert steps == list(range(steps[0], 7))
    assert steps[0] > 1


def test_a_changed_sample_is_refused(tmp_path):
    finished(tmp_path)
    db = sqlite3.connect(tmp_path / "run.db")
    with db:
        db.execute("UPDATE samples SET tokens = zeroblob(length(tokens)) WHERE step = 2")
    db.close()
    with Recording(tmp_path / "run.db") as recording:
        group = next(group for step, group in recording.sample_keys() if step == 2)
        with pytest.raises(RunError, match=f"sample of group {group}, step 2, has changed"):
            recording.sample(2, group)
