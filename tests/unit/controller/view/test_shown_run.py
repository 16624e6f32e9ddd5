"""A run that goes on is followed; one whose controller is gone is shown as it stood."""

import json
import os

import pytest

from controller.core.state.views.snapshot import Alarm
from controller.view import shown_run
from controller.view.past.replayed_core import StillReading
from controller.view.shown_run import ShownRun
from controller.view.written import SILENT_S
from tests.support.scripted import Disk
from tests.support.scripted_run import ScriptedRun, config_of, honest
from tests.support.shown_run import Browser, recorded


def begun(path):
    """A run of six steps, with workers, whose controller is this process."""
    path.mkdir()
    (path.parent / f".{path.name}.lock").write_text(str(os.getpid()))
    config = config_of(steps=6)
    run = ScriptedRun(path / "run.db", config, honest(config, Disk()))
    for name, role in (("r0", "rollout"), ("s", "reward"), ("t", "trainer")):
        run.attach(name, role)
    return run


def test_a_live_run_is_followed_to_its_newest_event(tmp_path):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    shown = ShownRun(tmp_path / "run")
    assert shown.state() == "live"
    before = shown.now({})
    assert before["number"] == before["last"] == run.stepper.last
    assert before["steps"] == run.core.state.steps
    past = shown.now({"step": "1"})
    run.run(until=lambda: run.core.state.steps >= 4)
    after = shown.now({})
    assert after["number"] == run.stepper.last > before["number"]
    assert after["steps"] == run.core.state.steps == 4
    assert shown.now({"step": "1"})["number"] == past["number"]
    assert {step for step, _ in shown.samples()["kept"]} >= {1, 2, 3}
    run.close()


def test_a_page_that_follows_sees_a_run_that_is_faster_than_it_as_it_was_a_little_before(
    tmp_path, monkeypatch
):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    shown = ShownRun(tmp_path / "run")
    first = shown.now({}, patience_s=1e9)
    run.run(until=lambda: run.core.state.steps >= 3)
    monkeypatch.setattr(shown_run, "late_after", lambda seconds: lambda: True)  # after each event
    near = shown.now({}, patience_s=0.3)
    assert first["last"] < near["number"] == first["number"] + 1 < near["last"] == run.stepper.last
    assert first["until_s"] <= near["now_s"] < near["until_s"]
    assert shown.ledger({}, patience_s=0.3)["number"] == near["number"] + 1, "each look reads on"
    assert shown.now({})["number"] == near["last"], "who has patience sees the end"
    run.close()


def test_a_search_for_a_decision_takes_no_longer_than_its_patience(tmp_path, monkeypatch):
    shown = ShownRun(recorded(tmp_path / "run"))
    last = shown.facts()["last"]
    quiet = [n for n in range(1, last) if not shown.moment({"event": str(n)})["event"]["commands"]]
    before = next(n - 1 for n in quiet[1:] if n + 1 in quiet)
    there = next(n for n in range(before + 1, last) if n not in quiet)
    shown.moment({"event": str(before)})  # stands there, so that only the search is left
    monkeypatch.setattr(shown_run, "late_after", lambda seconds: lambda: True)
    with pytest.raises(StillReading):
        shown.moment({"event": str(before)}, "next", patience_s=0.3)
    assert shown.moment({"event": str(before)}, "next")["number"] == there, "who has patience gets there"


def test_a_journal_is_read_on_between_looks_to_its_newest_event(tmp_path):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    shown = ShownRun(tmp_path / "run")
    shown.now({})
    run.run(until=lambda: run.core.state.steps >= 3)
    known, recording = shown._known, shown._known.recording
    shown._read_on(lambda: False)
    assert shown._known is known
    assert known.recording is not recording
    assert known.newest.is_at_end(known.recording)
    assert known.recording.last == run.stepper.last
    run.close()


def test_looks_at_the_newest_event_and_at_no_other_are_what_a_journal_is_read_ahead_for(
    tmp_path, monkeypatch
):
    shown, looks = ShownRun(recorded(tmp_path / "run")), []
    monkeypatch.setattr(shown._look().pursuit, "looked", looks.append)
    shown.now({})
    assert len(looks) == 1
    assert looks[0] > 0
    shown.now({"event": "40"})
    assert len(looks) == 1


def test_a_controller_that_lives_and_writes_nothing_is_named_now_and_in_no_moment_before(
    tmp_path, monkeypatch
):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    shown = ShownRun(tmp_path / "run")
    for file in (tmp_path / "run").glob("run.db*"):
        os.utime(file, (1e9, 1e9))
    monkeypatch.setattr(shown_run.time, "time", lambda: 1e9 + SILENT_S - 1)
    now = shown.now({})
    assert now["quiet_s"] == SILENT_S - 1
    assert now["alarms"] == []
    monkeypatch.setattr(shown_run.time, "time", lambda: 1e9 + SILENT_S)
    late = shown.now({})
    assert late["quiet_s"] == SILENT_S
    assert [one["owner"] for one in late["alarms"]] == ["controller"]
    assert shown.now({"step": "1"})["alarms"] == []
    run.close()
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert ShownRun(tmp_path / "run").now({})["alarms"] == [], "it is over"


DISK = {"name": "disk", "owner": "controller", "evidence": "3 GB are free", "remedy": "Free some."}
STORM = DISK | {"name": "respawn storm", "owner": "workers"}


def test_what_a_controller_says_of_itself_is_shown_while_it_lives_and_of_no_moment_before(tmp_path):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    shown = ShownRun(tmp_path / "run")
    assert shown.now({})["controller"] == {}
    said = {"controller": {"loop_lag_p99_s": 0.5, "disk_free_mb": None}, "alarms": [STORM, DISK, "no alarm"]}
    (tmp_path / "run" / "status.json").write_text(json.dumps(said))
    now = shown.now({})
    assert now["controller"] == {"loop_lag_p99_s": 0.5}
    assert now["alarms"] == [DISK], "the others are found in the journal"
    past = shown.now({"step": "1"})
    assert (past["controller"], past["alarms"]) == ({}, [])
    for damaged in ("{", "[]", '{"controller": 3, "alarms": {}}'):
        (tmp_path / "run" / "status.json").write_text(damaged)
        assert (shown.now({})["controller"], shown.now({})["alarms"]) == ({}, [])
    (tmp_path / "run" / "status.json").write_text(json.dumps(said))
    run.close()
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert ShownRun(tmp_path / "run").now({})["alarms"] == [], "it is over"


def test_workers_that_kept_failing_are_named_at_any_moment_at_which_they_did(tmp_path, monkeypatch):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 2)
    alarm = Alarm(**STORM)
    monkeypatch.setattr(shown_run, "alarms_of", lambda core: [alarm] if core.state.steps >= 2 else [])
    shown = ShownRun(tmp_path / "run")
    assert shown.now({})["alarms"] == [STORM]
    assert shown.now({"step": "1"})["alarms"] == []
    assert shown.now({"step": "2"})["alarms"] == [STORM]
    run.close()
    (tmp_path / "run" / "summary.json").write_text("{}")
    assert ShownRun(tmp_path / "run").now({})["alarms"] == [STORM], "it is over, and stood so"


def test_a_run_whose_controller_is_gone_is_shown_as_it_stood(tmp_path):
    run = begun(tmp_path / "run")
    run.run(until=lambda: run.core.state.steps >= 3)
    run.close()
    (tmp_path / ".run.lock").write_text("999999999")
    (tmp_path / "run" / "metrics.jsonl").touch()  # as a run does when it begins
    shown = ShownRun(tmp_path / "run")
    assert shown.state() == "gone"
    assert shown.now({})["steps"] == 3
    assert not shown.now({})["is_over"]
    assert shown.metrics() == {"steps": {}, "evaluations": {}}


def test_a_copy_on_a_disk_that_is_only_read_opens(tmp_path):
    run = begun(tmp_path / "run")
    run.run()
    run.close()
    copy = tmp_path / "elsewhere" / "copy"
    copy.mkdir(parents=True)
    (copy / "run.db").write_bytes((tmp_path / "run" / "run.db").read_bytes())
    os.chmod(copy / "run.db", 0o400)
    os.chmod(copy, 0o500)
    shown = ShownRun(copy / "run.db")
    assert shown.facts()["name"] == "copy"
    assert shown.now({})["steps"] == 6
    assert sorted(file.name for file in copy.iterdir()) == ["run.db"]
    os.chmod(copy, 0o700)


def test_before_the_first_event_nothing_is_amiss(tmp_path):
    run = ShownRun(recorded(tmp_path / "run"))
    assert run.now({"event": "0"})["idle_because"] == ""
    assert run.now({"event": "1"})["idle_because"] != ""


@pytest.mark.parametrize("is_moved", [True, False])
def test_curves_that_are_not_there_are_missed_and_not_said_to_be_none_yet(tmp_path, is_moved):
    browser = Browser(recorded(tmp_path / "run"))
    assert browser.json("/api/runs/0/metrics")[1]["steps"]["step"] == [1, 2, 3, 4]
    gone = tmp_path / "run" if is_moved else tmp_path / "run" / "metrics.jsonl"
    gone.rename(tmp_path / "elsewhere")
    status, found = browser.json("/api/runs/0/metrics")
    assert status == 404
    assert "There is no metrics.jsonl in " in found["error"]
