"""Trackers get each step once, whatever is killed, rewritten, hangs or fails."""

import gc
import json
import struct
import sys
import threading
import weakref
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace

import pytest

from controller.view.exports import jsonl_tail
from controller.view.exports.beside import run_id
from controller.view.exports.jsonl_tail import StepLines, Tail
from controller.view.exports.tensorboard import NAME
from controller.view.exports.trackers import Sending, by_step, make_tracker
from protocol.errors import ConfigError
from protocol.importing import load_object


def nothing(end):
    return nullcontext([])


def line(step, value=1.0):
    return {
        "step": step,
        "time_s": step * 2.0,
        "reward/mean": value,
        "staleness/hist": {"0": 3},
        "flag": True,
    }


def events(run):
    """(step, tag, value) of an event file, as the package of TensorBoard reads it."""
    event_pb2 = pytest.importorskip(
        "tensorboard.compat.proto.event_pb2", reason="tensorboard is not installed"
    )
    found = []
    for record in records((run / "tensorboard" / NAME).read_bytes()):
        event = event_pb2.Event.FromString(record)
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def records(data):
    """What the framing holds, as far as it is whole."""
    while len(data) >= 12:
        (length,) = struct.unpack("<Q", data[:8])
        if len(data) < length + 16:
            return
        yield data[12 : 12 + length]
        data = data[length + 16 :]


def test_no_tracker_writes_through_a_link_that_came_with_a_run(tmp_path):
    victim = tmp_path / "thesis.tex"
    victim.write_text("all of it")
    run = tmp_path / "run"
    (run / "tensorboard").mkdir(parents=True)
    (run / "tensorboard" / f".{NAME}.new").symlink_to(victim)
    (run / "trackers.json").symlink_to(victim)
    made = make_tracker("tensorboard", run, {}, run_id(run))
    made.begin([line(1)])
    made.close()
    assert victim.read_text() == "all of it"
    assert not (run / "tensorboard" / NAME).is_symlink()


@pytest.mark.parametrize("id", ["a/../../../precious", "a/../../../*", "*", "", "../x", 7, ["a"]])
def test_no_tracker_removes_a_folder_that_an_id_names_which_came_with_a_run(tmp_path, monkeypatch, id):
    run, kept = tmp_path / "run", tmp_path / "precious" / "thesis.tex"
    for folder in (run / "wandb" / "offline-run-1-a", run / "wandb" / "offline-run-1-b", kept.parent):
        folder.mkdir(parents=True)
    kept.write_text("all of it")
    (run / "trackers.json").write_text(json.dumps({"id": id}))
    kept_run = SimpleNamespace(log=lambda *words, **more: None, finish=lambda: None)
    package = SimpleNamespace(Settings=dict, init=lambda **words: kept_run, teardown=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", package)
    made = make_tracker("wandb", run, {}, run_id(run))
    made.begin([line(1)])
    made.close()
    assert kept.read_text() == "all of it"
    assert len([*(run / "wandb").iterdir()]) == 2, "of another id"
    assert run_id(run) == json.loads((run / "trackers.json").read_text())["id"] != id


def test_tensorboard_reads_each_step_once_after_a_kill_in_the_middle_of_a_record(tmp_path):
    first = make_tracker("tensorboard", tmp_path, {}, "id")
    first.begin([line(1)])
    first.step(line(2))
    first.close()
    file = tmp_path / "tensorboard" / NAME
    file.write_bytes(file.read_bytes()[:-7])  # killed there
    second = make_tracker("tensorboard", tmp_path, {}, "id")
    second.begin([line(1), line(2), line(3, 0.5)])
    second.step(line(4))
    second.close()
    rewards = [(step, value) for step, tag, value in events(tmp_path) if tag == "reward/mean"]
    assert rewards == [(1, 1.0), (2, 1.0), (3, 0.5), (4, 1.0)]
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == [NAME]


def test_its_checksums_are_those_of_the_format(tmp_path):
    """The reader of TensorBoard itself refuses a record whose CRC-32C is wrong."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    tracker = make_tracker("tensorboard", tmp_path, {}, "id")
    tracker.begin([line(step) for step in range(1, 6)])
    tracker.close()
    read = list(loader.EventFileLoader(str(tmp_path / "tensorboard" / NAME)).Load())
    assert [event.step for event in read][1:] == [1, 2, 3, 4, 5]
    assert read[0].file_version == "brain.Event:2"


@pytest.mark.parametrize(("value", "infinite"), [(2.7e43, b"\x00\x00\x80\x7f"), (-1e39, b"\x00\x00\x80\xff")])
def test_a_figure_beyond_float32_is_infinite_and_the_rest_is_written(tmp_path, value, infinite):
    tracker = make_tracker("tensorboard", tmp_path, {}, "id")
    tracker.begin([{"step": 1, "time_s": 1.0, "perplexity": value}])
    tracker.step(line(2))
    tracker.close()
    _, first, second = records((tmp_path / "tensorboard" / NAME).read_bytes())
    assert b"perplexity\x15" + infinite in first
    assert b"reward/mean" in second


class Kept:
    """A tracker that remembers what it was told."""

    def __init__(self):
        self.begun, self.steps, self.is_closed = [], [], False

    def begin(self, lines):
        self.begun.append([one["step"] for one in lines])
        self.steps = [(one["step"], one["reward/mean"]) for one in lines]

    def step(self, one):
        self.steps.append((one["step"], one["reward/mean"]))

    def close(self):
        self.is_closed = True


def test_steps_go_on_and_a_redone_step_begins_again_with_the_later_value():
    kept = Kept()
    there = by_step([line(1), line(2), line(3, 0.25), line(3, 0.75), line(4)])
    sending = Sending("kept", lambda: kept, tell=pytest.fail, again=lambda end: nullcontext(there))
    sending.send([line(1), line(2)], is_anew=False)
    sending.send([line(3)], is_anew=False)
    sending.send([line(1), line(2), line(3, 0.25)], is_anew=True)
    sending.send([line(3, 0.75), line(4)], is_anew=False)
    assert sending.finish(60)
    assert kept.steps == [(1, 1.0), (2, 1.0), (3, 0.75), (4, 1.0)]
    assert kept.is_closed


def test_of_a_step_that_was_redone_the_later_line_counts():
    found = by_step([line(2), line(1), {"no": "step"}, line(2, 0.5)])
    assert [(one["step"], one["reward/mean"]) for one in found] == [(1, 1.0), (2, 0.5)]


class Line(dict):
    """A line of which it is known whether anybody holds it."""


def test_a_line_that_a_tracker_has_got_is_held_by_nobody():
    noting = Noting()
    sending = Sending("noting", lambda: noting, tell=pytest.fail, again=nothing)
    held = []
    for step in range(1, 51):
        made = Line(line(step))
        held.append(weakref.ref(made))
        sending.send([made], is_anew=False)
        del made
    assert sending.finish(60)
    gc.collect()
    assert not any(one() for one in held)
    assert [step for step, _ in chain(*noting.begun)] + noting.steps == list(range(1, 51))


def test_a_tracker_that_fails_is_told_once_and_one_that_hangs_is_left_behind():
    told, hangs = [], threading.Event()

    class Refuses(Kept):
        def begin(self, lines):
            raise OSError("no network")

    class Hangs(Kept):
        def begin(self, lines):
            hangs.wait()

    refusing = Sending("refusing", Refuses, tell=told.append, again=nothing)
    hanging = Sending("hanging", Hangs, tell=told.append, again=nothing)
    for sending in (refusing, hanging):
        for step in (1, 2, 3):
            sending.send([line(step)], is_anew=False)
    assert refusing.finish(60)
    assert refusing._queue.empty()  # what it gets no more is not kept
    assert not hanging.finish(0.0)
    hangs.set()
    assert len(told) == 1
    assert "refusing gets nothing more: OSError: no network" in told[0]


class Noting:
    """A tracker that notes what it is told, and says when it has begun."""

    def __init__(self):
        self.begun, self.steps, self.has_begun = [], [], threading.Event()

    def begin(self, lines):
        self.begun.append([(one["step"], one["reward/mean"]) for one in lines])
        self.has_begun.set()

    def step(self, one):
        self.steps.append(one["step"])

    def close(self):
        pass


def test_a_step_that_is_made_again_begins_the_record_again():
    noting = Noting()
    sending = Sending(
        "noting",
        lambda: noting,
        tell=pytest.fail,
        again=lambda end: nullcontext(by_step([line(1), line(2), line(2, 0.5)])),
    )
    sending.send([line(1), line(2)], is_anew=False)
    assert noting.has_begun.wait(60)
    sending.send([line(2, 0.5)], is_anew=False)
    assert sending.finish(60)
    assert noting.begun == [[(1, 1.0), (2, 1.0)], [(1, 1.0), (2, 0.5)]]
    assert noting.steps == []


def test_what_has_piled_up_before_another_file_was_there_is_not_of_the_record():
    noting, is_made = Noting(), threading.Event()
    sending = Sending("noting", lambda: is_made.wait(60) and noting, tell=pytest.fail, again=nothing)
    sending.send([line(1), line(2), line(3)], is_anew=False)
    sending.send([line(1, 0.5)], is_anew=True)
    is_made.set()
    assert sending.finish(60)
    assert noting.begun == [[(1, 0.5)]]


def test_one_of_the_users_is_found_and_what_is_none_is_said(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "class make:\n    def __init__(self, *given):\n        global GIVEN\n        GIVEN = given\n\n"
        "    begin = step = close = print\n"
    )
    make_tracker(f"{file}:make", tmp_path, {"a": 1}, "x")
    assert load_object(f"{file}:GIVEN") == (tmp_path, {"a": 1}, "x")
    for name, words in (("mlflow", "there is no tracker 'mlflow'"), (f"{file}:none", "has no `none`"),
                        (f"{tmp_path}/gone.py:make", "There is no file"),
                        ("nowhere.at_all:make", "Importing `nowhere.at_all` for"),
                        ("math:pi", "math:pi is a float, no function")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            make_tracker(name, tmp_path, {}, "x")


def test_a_file_is_followed_by_whole_lines_and_a_new_one_begins_again(tmp_path):
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.read() == ([], False)
    file.write_text('{"step": 1}\n{"st')
    assert tail.read() == ([{"step": 1}], False)
    with file.open("a") as more:
        more.write('ep": 2}\nnot json\n[1]\n')
    assert tail.read() == ([{"step": 2}], False)
    aside = tmp_path / "new"
    aside.write_text("".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3)))
    aside.replace(file)
    assert tail.read() == ([{"step": 1}, {"step": 2}, {"step": 3}], True)
    assert tail.read() == ([], False)


def test_a_long_file_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl_tail, "PIECE", 30)
    file = tmp_path / "metrics.jsonl"
    steps = [{"step": number} for number in range(1, 11)]
    file.write_text("".join(json.dumps(one) + "\n" for one in steps) + '{"step": 11}')
    tail = Tail(file)
    pieces = [lines for lines, _ in tail.pieces()]
    assert len(pieces) > 3
    assert [*chain(*pieces)] == steps
    assert [*tail.pieces()] == []
    assert tail.end == file.read_bytes().rindex(b"\n") + 1
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4}\n')
    begun = [*tail.pieces()]
    assert [is_other for _, is_other in begun] == [True, False]
    assert [*chain(*(lines for lines, _ in begun))] == steps[:4]


def test_of_more_than_a_piece_a_tracker_begins_with_the_file_up_to_there(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line(step)) + "\n" for step in (1, 2, 2, 3)))
    kept, end = Kept(), file.stat().st_size
    sending = Sending("kept", lambda: kept, tell=pytest.fail, again=lambda end: StepLines(file, until=end))
    with file.open("a") as more:
        more.write(json.dumps(line(4)) + "\n")
    sending.begin_again(end)
    sending.send([line(4)], is_anew=False, end=file.stat().st_size)
    assert sending.finish(60)
    assert kept.steps == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert kept.begun[0] in ([1, 2, 3], [1, 2, 3, 4])


def test_a_file_that_is_replaced_by_a_longer_one_or_emptied_in_its_place_begins_again(tmp_path):
    file, aside = tmp_path / "metrics.jsonl", tmp_path / "new"
    tail = Tail(file)
    file.write_text('{"step": 1}\n')
    assert tail.read() == ([{"step": 1}], False)
    aside.write_text('{"step": 1}\n{"step": 2}\n')
    aside.replace(file)
    assert tail.read() == ([{"step": 1}, {"step": 2}], True)
    file.write_text('{"step": 3}\n')
    assert tail.read() == ([{"step": 3}], True)


def test_wandb_offline_holds_each_step_once_after_a_restart(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    first = make_tracker("wandb", tmp_path, {"run": {"steps": 3}}, "abc123")
    first.begin([line(1), line(2)])
    first.close()
    second = make_tracker("wandb", tmp_path, {"run": {"steps": 3}}, "abc123")
    second.begin([line(1), line(2)])
    second.step(line(3))
    second.close()
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert len(folders) == 1
    steps = []
    for data in wandb_records(next(folders[0].glob("*.wandb")).read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
    assert steps == [1, 2, 3]


def wandb_records(data):
    """Records of the log format of LevelDB, behind wandb's header of 7 bytes."""
    at, part = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield part
            part = b""
