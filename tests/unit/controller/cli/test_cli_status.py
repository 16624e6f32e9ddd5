"""What `status` says of a run that goes on, waits, is stopped, has failed, or is over, and when waits are
worth telling."""

import json
import os
from dataclasses import replace

import pytest

from controller.cli import status as status_command
from controller.cli.console import verdict_lines
from controller.cli.main import main
from controller.cli.status import in_words, stop
from controller.core.events import StopRequested
from controller.durability.holder import lock_of, started_at
from controller.host.watchdog import FIRST_S, LEAST_S, Watchdog, status_of
from protocol.errors import RunError
from protocol.messages import CheckpointSaved, TrainStepFinished
from tests.support.core_run import Run
from tests.unit.controller.host.test_watchdog import some_core, watchdog, written


def shown(run_dir, *, waits, now_offset=0.0):
    """The lines of `status` where the controller lives and these waits are in status.json."""
    path = run_dir / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps(status | {"waits": waits}))
    return in_words(run_dir, now=path.stat().st_mtime + now_offset)


def wait(for_s, *, is_overdue=False):
    return {"owner": "rollout-0", "what": "generating 1.0", "for_s": for_s, "expected_s": 30.0,
            "then": "kill it", "is_overdue": is_overdue}  # fmt: skip


def test_a_wait_is_told_from_five_seconds_on_and_a_remedy_only_when_it_is_overdue(tmp_path):
    run = written(tmp_path)
    assert not [line for line in shown(run, waits=[wait(4.9)]) if "generating 1.0" in line]
    assert shown(run, waits=[wait(6.0)])[-1] == "waits: rollout-0, 6 s, for generating 1.0"
    overdue = shown(run, waits=[wait(6.0), wait(31.0, is_overdue=True)])[-1]
    assert overdue == "STUCK: rollout-0, 31 s, for generating 1.0; kill it"


def test_a_run_whose_controller_is_gone_waits_for_nothing(tmp_path):
    run = written(tmp_path)
    (tmp_path / ".run.lock").write_text(str(2**22 + 1))
    lines = shown(run, waits=[wait(99.0, is_overdue=True)])
    assert "its controller is gone" in lines[0]
    assert not [line for line in lines if line.startswith(("STUCK", "waits"))]


def test_before_a_version_is_published_and_in_a_supervised_run_there_is_none(tmp_path):
    run = written(tmp_path)
    status = json.loads((run / "status.json").read_text())
    for newest, words in ((-1, "no version is published, "), (3, "version 3 is published, ")):
        (run / "status.json").write_text(json.dumps(status | {"published_version": newest}))
        assert any(line.startswith(words) for line in shown(run, waits=[]))


def test_where_no_group_has_a_deadline_nothing_is_said_to_be_due(tmp_path):
    run = written(tmp_path)
    status = json.loads((run / "status.json").read_text())
    for due, told in (({"3": 2, "4": 1}, ["due by version (batches of 32): 2 in 3, 1 in 4"]), ({}, [])):
        (run / "status.json").write_text(json.dumps(status | {"due_counts": due, "batch_groups": 32}))
        assert [line for line in shown(run, waits=[]) if line.startswith("due by")] == told


def test_a_clock_that_was_set_back_gives_no_age_below_zero(tmp_path):
    run = written(tmp_path)
    (tmp_path / ".run.lock").write_text(str(2**22 + 1))
    assert "its controller is gone since 0 s" in shown(run, waits=[], now_offset=-3600.0)[0]


@pytest.mark.parametrize("name", ["status.json", "summary.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "x", "{}", '{"is_success": 1}', "[" * 100_000])
def test_a_file_that_is_damaged_is_one_sentence(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(RunError, match=rf"{name} is damaged, or of another release: .* `launch\.py replay"):
        in_words(tmp_path, now=0.0)


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_is_one_sentence(tmp_path, name):
    run = written(tmp_path)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with pytest.raises(RunError, match=rf"{name} cannot be read: it is a pipe or a device, and no file\."):
        in_words(run, now=0.0)


def test_tokens_per_second_are_those_of_the_last_step(tmp_path):
    core = some_core(150)
    assert status_of(core.snapshot(), [], tokens_per_s=None)["tokens_per_s"] is None
    run = written(tmp_path)
    assert "; 12 tokens/s in the last one" in shown(run, waits=[])[1]
    status = json.loads((run / "status.json").read_text()) | {"tokens_per_s": None}
    (run / "status.json").write_text(json.dumps(status))
    assert "tokens/s" not in in_words(run, now=0.0)[1]


def ended(run: Run, steps: int) -> dict[str, object]:
    """The summary of a run that was stopped after so many steps."""
    for version in range(1, steps + 1):
        for route in run.start_groups() if version == 1 else []:
            run.generate(route, 2)
        run.say("trainer", TrainStepFinished(version, 0.1, ()))
    run.do(StopRequested("interrupted by the operator"))
    run.say("trainer", CheckpointSaved(run.core.state.steps, "checkpoint"))
    return run.core.summary()


def test_a_stopped_run_is_no_done_run():
    summary = ended(Run(), 0)
    assert (summary["is_success"], summary["ending"]) == (True, "stopped")
    (first, *_) = verdict_lines(summary, "runs/x")
    assert first == "Stopped after 0 of 2 train steps at your request. The same command goes on."


@pytest.mark.parametrize(
    ("summary", "headline"),
    [
        ({"is_success": True, "ending": "done", "reason": "All 2 train steps are made."},
         "is done: All 2 train steps are made."),
        ({"is_success": True, "ending": "stopped", "reason": "interrupted by the operator"},
         "was stopped: interrupted by the operator"),
        ({"is_success": False, "ending": "failed", "reason": "No trainer is left."},
         "has failed: No trainer is left."),
        ({"is_success": False, "reason": "of an older release"}, "has failed: of an older release"),
    ],
)  # fmt: skip
def test_a_run_that_is_over_is_told_by_its_end_alone(tmp_path, summary, headline):
    run = written(tmp_path)
    figures = {"steps": 2, "steps_wanted": 60, "time_s": 9.0, "verdict": "Bound by rollout: ..."}
    (run / "summary.json").write_text(json.dumps(summary | figures))
    lines = in_words(run, now=0.0)
    assert lines[0] == f"{run} {headline}"
    assert ("The same command goes on." in lines[1]) == (summary.get("ending") == "stopped")
    assert "Bound by rollout: ..." in lines
    assert not [line for line in lines if line.startswith(("waits", "STUCK", "groups", "worker", "due"))]


def test_starting_up_is_no_wait_of_the_first_step():
    core, dog = some_core(150), Watchdog(lease_s=10.0, attach_timeout_s=600.0, has_log=lambda name: True)
    seen = core.snapshot()
    loading = replace(
        seen, workers=tuple(replace(w, ready=False, working_on="getting ready") for w in seen.workers)
    )
    told = [dog.look(loading if second < 200 else seen, float(second))[1] for second in range(400)]
    steps = [second for second, lines in enumerate(told) if any(w.startswith("the next step") for w in lines)]
    assert steps == [200 + FIRST_S + 1]


def test_a_wait_whose_like_was_seen_is_measured_by_that():
    core, dog = some_core(150), watchdog()
    seen = core.snapshot()
    for second in range(10):  # a step each second
        dog.look(replace(seen, steps=second), float(second))
    told = [dog.look(replace(seen, steps=9), 10.0 + second)[1] for second in range(60)]
    complaint = next(line for lines in told for line in lines if line.startswith("the next step"))
    assert f"has waited {LEAST_S + 1:.0f} s for" in complaint
    assert "(usually at most 25 s)" in complaint


def test_what_is_waited_for_is_never_an_empty_list():
    run = Run()
    for route in run.start_groups():
        run.generate(route, 2)
    run.core.state.end("enough", is_success=True)
    assert run.core.snapshot().waiting_for == "what is left to be saved and evaluated"
    run.core.state.ending = None
    run.core.state.ledger.blockers = lambda: []
    run.core.state.ledger._occupied = {0: 0, 1: 0}
    assert run.core.snapshot().waiting_for == "the trainer to be given the batch that is complete"


def test_a_run_that_ends_waits_for_no_group_that_it_has_called_back():
    run = Run()
    run.start_groups()
    assert run.core.snapshot().oldest_group is not None
    run.core.state.end("enough", is_success=True)
    assert run.core.snapshot().oldest_group is None


def test_a_run_of_another_user_is_not_stopped_and_that_is_said(tmp_path, monkeypatch):
    def kill(pid, signal):
        raise PermissionError(1, "Operation not permitted")

    lock_of(tmp_path / "run").write_text(f"1 {started_at(1)}")
    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(RunError, match=r"\(pid 1\) is another user's process"):
        stop(str(tmp_path / "run"))


def test_a_run_that_ends_while_it_is_asked_to_stop_is_told_as_one_that_has_ended(tmp_path, monkeypatch):
    def kill(pid, number):
        if number:
            raise ProcessLookupError(3, "No such process")

    lock_of(tmp_path / "run").write_text(f"1 {started_at(1)}")
    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(RunError, match="there is nothing to stop"):
        stop(str(tmp_path / "run"))


def test_alarms_are_told_while_a_run_goes_on_and_after_its_end(tmp_path):
    run = written(tmp_path)
    step = {"reward/std": 0.0, "reward/mean": 0.5, "staleness/max": 3}
    (run / "metrics.jsonl").write_text((json.dumps(step) + "\n") * 5 + '{"step"')
    (told,) = [line for line in shown(run, waits=[]) if line.startswith("ALARM")]
    assert told.startswith("ALARM, no signal (reward): all rewards of the last 5 steps are 0.5.")
    summary = {"is_success": True, "reason": "all", "steps": 5, "time_s": 9.0, "staleness/max_allowed": 2}
    (run / "summary.json").write_text(json.dumps(summary))
    ended = [line for line in in_words(run, now=0.0) if line.startswith("ALARM")]
    assert [line.split(" (")[0] for line in ended] == ["ALARM, bound broken", "ALARM, no signal"]


def test_a_broken_bound_is_told_while_the_run_goes_on(tmp_path, capsys):
    run = written(tmp_path)
    (run / "metrics.jsonl").write_text(json.dumps({"staleness/max": 3}) + "\n")
    status = json.loads((run / "status.json").read_text()) | {"staleness/max_allowed": 2}
    (run / "status.json").write_text(json.dumps(status))
    lock_of(run).write_text(f"{os.getpid()} {started_at(os.getpid())}")
    (told,) = [line for line in shown(run, waits=[]) if line.startswith("ALARM")]
    assert told.startswith("ALARM, bound broken (staleness): a trajectory was 3 versions old")
    assert main(["status", str(run), "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["alarms"]] == ["bound broken"]


def test_alarms_of_the_controller_are_told_while_it_lives(tmp_path, capsys):
    run = written(tmp_path)
    alarm = {"name": "disk", "owner": "controller", "evidence": "3 GB are free", "remedy": "Free some."}
    status = json.loads((run / "status.json").read_text()) | {"alarms": [alarm]}
    (run / "status.json").write_text(json.dumps(status))
    for pid, known in ((os.getpid(), [alarm]), (2**22 + 1, [])):
        lock_of(run).write_text(f"{pid} {started_at(os.getpid())}")
        words = [line for line in shown(run, waits=[]) if line.startswith("ALARM")]
        assert words == ["ALARM, disk (controller): 3 GB are free. Free some."] * len(known)
        assert main(["status", str(run), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["alarms"] == known
    (run / "status.json").write_text(json.dumps(status | {"alarms": [{"name": "disk"}]}))
    lock_of(run).write_text(f"{os.getpid()} {started_at(os.getpid())}")
    with pytest.raises(RunError, match=r"status\.json is damaged, or of another release"):
        in_words(run, now=0.0)


SUMMARY = {"is_success": True, "reason": "all", "steps": 5, "time_s": 9.0}


def test_programs_are_told_the_same_with_how_old_it_is(tmp_path, capsys):
    run = written(tmp_path)
    (tmp_path / ".run.lock").write_text(str(2**22 + 1))
    assert main(["status", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["alarms"]) == ("gone", [])
    assert told["age_s"] >= 0
    assert told["steps"] == json.loads((run / "status.json").read_text())["steps"]
    lock_of(run).write_text(f"{os.getpid()} {started_at(os.getpid())}")
    assert main(["status", str(run), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()  # and no second one, though it goes on
    assert json.loads(line)["state"] == "live"
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    assert main(["status", str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["age_s"], told["steps"]) == ("over", None, 5)


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl"])
def test_what_is_damaged_is_one_sentence_for_programs_too(tmp_path, capsys, name):
    run = written(tmp_path)
    (run / name).write_text("[7\n")
    assert main(["status", str(run), "--json"]) == 1
    told = {"status.json": "status.json is damaged, or of", "metrics.jsonl": "metrics.jsonl is no JSON"}
    assert told[name] in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--watch"], ["--watch", "--json"]])
def test_who_watches_is_told_until_the_run_has_ended(tmp_path, capsys, monkeypatch, words):
    run = written(tmp_path)
    lock_of(run).write_text(f"{os.getpid()} {started_at(os.getpid())}")
    looks, metrics = [], run / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n' * 500)

    def end(seconds):
        looks.append(seconds)
        with metrics.open("r+b") as file:
            file.write(b"}")  # which nobody notices who reads only what has come since the last look
            file.seek(0, os.SEEK_END)
            file.write(b'{"step": 2, "staleness/max": 3}\n')
        if len(looks) == 2:
            summary = {**SUMMARY, "staleness/max_allowed": 2, "staleness/violations": 0}
            (run / "summary.json").write_text(json.dumps(summary))

    monkeypatch.setattr(status_command.time, "sleep", end)
    assert main(["status", str(run), *words]) == 0
    assert len(looks) == 2
    shown = capsys.readouterr().out
    assert "bound broken" in shown
    if "--json" in words:
        states = [json.loads(line)["state"] for line in shown.splitlines()]
        assert states[:-1] != states[-1:] == ["over"]
        assert len(states) == 3
    else:
        assert "is done: all" in " ".join(shown.split())  # which the terminal wraps


def test_of_a_line_no_more_is_held_than_what_alarms_look_at(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "reward/mean": 0.25}\n')
    assert status_command._written(tmp_path).lines("metrics.jsonl") == [{"step": 1, "reward/mean": 0.25}]
