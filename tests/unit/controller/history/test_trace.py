"""A run as a trace: every slice begins and ends, on the track of the worker that did it."""

import json
import os
from collections import Counter

import pytest

from controller.cli.main import main
from controller.durability.recording import Recording
from controller.history.trace import trace
from protocol import messages
from tests.support.answered_run import AnsweredRun


def traced(tmp_path, capsys):
    file = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "-o", str(file)]) == 0
    entries = json.loads(file.read_text())["traceEvents"]
    begun = sum(entry["ph"] in ("b", "X") for entry in entries)
    assert f"{begun} slices" in capsys.readouterr().out
    assert not any("flows" in entry for entry in entries)
    return entries


def slices(entries, category):
    """(begin, end) of each slice of a category."""
    entries = list(entries)
    begun = {e["id"]: e for e in entries if e["ph"] == "b" and e["cat"] == category}
    ended = {e["id"]: e for e in entries if e["ph"] == "e" and e["cat"] == category}
    assert begun.keys() == ended.keys()
    return [(begun[id], ended[id]) for id in begun]


def test_every_slice_begins_and_ends_on_the_track_of_its_worker(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=4).to_the_end()
    entries = traced(tmp_path, capsys)
    names = {e["args"]["name"]: e["pid"] for e in entries if e["name"] == "process_name"}
    assert set(names) == {"run", "rollout-0", "rollout-1", "reward-0", "trainer"}
    assert {begin["name"] for begin, _ in slices(entries, "train")} == {f"train {n}" for n in range(1, 5)}
    for category, workers in (("train", {"trainer"}), ("score", {"reward-0"}), ("checkpoint", {"trainer"})):
        found = slices(entries, category)
        assert {begin["pid"] for begin, _ in found} == {names[worker] for worker in workers}
        assert all(begin["ts"] < end["ts"] for begin, end in found)
    assert {begin["pid"] for begin, _ in slices(entries, "route")} == {names["rollout-0"], names["rollout-1"]}
    assert slices(entries, "pull")
    assert Counter(e["name"] for e in entries if e["ph"] == "X")["publish 2"] == 1
    assert any(e["ph"] == "C" and e["args"]["occupied"] for e in entries)


def test_what_a_killed_run_left_open_ends_with_the_history(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=4).to_the_end(max_events=25)
    entries = traced(tmp_path, capsys)
    phases = Counter(entry["ph"] for entry in entries)
    assert phases["b"] == phases["e"]
    assert any(e["args"].get("ended") == "the history ends" for e in entries if e["ph"] == "e")


def test_a_response_that_is_called_off_ends_with_the_order_which_no_worker_answers(tmp_path):
    class OneIsSlow(AnsweredRun):
        def answer_message(self, peer, message):
            if not (isinstance(message, messages.Route) and (message.group, message.member) == (0, 0)):
                super().answer_message(peer, message)

    run = OneIsSlow(tmp_path / "run.db", steps=4, spare_responses=1)
    run.to_the_end()
    assert run.core.state.finished
    with Recording(tmp_path) as recording:
        ended = {begin["name"]: end["args"]["ended"] for begin, end in slices(trace(recording), "route")}
    assert ended["route 0 0 1"] == "abort"
    assert set(ended.values()) == {"stop", "abort"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    assert main(["trace", str(tmp_path), "-o", str(tmp_path / "no" / "trace.json")]) == 2
    assert "trace.json cannot be written" in capsys.readouterr().err


def test_a_slice_is_known_by_the_number_of_its_worker_and_not_by_the_secret_id_of_its_link(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=4).to_the_end()
    begun = [entry for entry in traced(tmp_path, capsys) if "id" in entry]
    assert begun
    assert all(entry["id"] == f"{entry['pid']} {entry['name']}" for entry in begun)


@pytest.mark.parametrize("name", ["trace.pftrace", "trace.json"])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "99999"), "was not written: none of the workers did anything from 99999 s"),
        (("--from", "10", "--to", "5"), "--to 5 is before --from 10"),
        (("--workers", "nobody,trainer"), "was ever called nobody. Expected some of reward-0, rollout-0"),
    ],
)
def test_a_trace_that_is_refused_leaves_the_one_before(tmp_path, capsys, name, words, told):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    file = tmp_path / "out" / name
    file.parent.mkdir()
    file.write_text("the one before")
    assert main(["trace", str(tmp_path), "-o", str(file), *words]) == 2
    assert told in capsys.readouterr().err
    assert [(one.name, one.read_text()) for one in file.parent.iterdir()] == [(name, "the one before")]


def test_a_trace_takes_the_place_of_the_one_before_and_goes_through_a_link_and_into_a_pipe(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    file, link = tmp_path / "trace.json", tmp_path / "link.json"
    file.write_text("the one before")
    link.symlink_to(file)
    assert main(["trace", str(tmp_path), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(file.read_text())["traceEvents"]
    assert main(["trace", str(tmp_path), "-o", os.devnull]) == 0
    assert not os.path.isfile(os.devnull)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.json", "run.db", "trace.json"]


def test_a_trace_keeps_the_mode_of_the_one_before_and_a_new_one_follows_the_umask(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    before, new = tmp_path / "before.json", tmp_path / "new.json"
    before.touch()
    before.chmod(0o600)
    umask = os.umask(0o027)
    try:
        assert main(["trace", str(tmp_path), "-o", str(before)]) == 0
        assert main(["trace", str(tmp_path), "-o", str(new)]) == 0
    finally:
        os.umask(umask)
    assert before.stat().st_size
    assert (before.stat().st_mode & 0o777, new.stat().st_mode & 0o777) == (0o600, 0o640)


@pytest.mark.parametrize("words", [(), ("--from", "99999")])
def test_no_file_beside_a_trace_is_touched(tmp_path, words):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "trace.json.partial"
    mine.write_text("mine")
    main(["trace", str(tmp_path), "-o", str(tmp_path / "out" / "trace.json"), *words])
    assert mine.read_text() == "mine"
    assert {one.name for one in mine.parent.iterdir()} <= {"trace.json", mine.name}


def test_what_runs_through_a_span_without_an_event_is_shown_up_to_its_end(tmp_path):
    """As of a run that hangs: nothing is heard, and what is waited for has begun before."""
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    with Recording(tmp_path) as recording:
        whole = slices(trace(recording), "train")
        begin_s = whole[0][0]["ts"] / 1e6 + 0.002  # events are 0.01 s apart
        span = list(trace(recording, begin_s=begin_s, end_s=begin_s + 0.004))
    ((begun, ended),) = slices(span, "train")
    assert begun == whole[0][0]
    assert ended["args"] == {"ended": "the span ends"}
    assert ended["ts"] == pytest.approx(1e6 * (begin_s + 0.004))
