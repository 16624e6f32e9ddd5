"""A replay finds that a run was as its journal says, or where it was not."""

import sys

import pytest

from controller.cli.main import main
from controller.durability.fingerprint import NOTHING
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.history.story import story
from protocol.errors import RunError
from tests.support.answered_run import OTHER_RELEASE, AnsweredRun, execute


def replayed(path):
    with Recording(path) as recording:
        return replay(recording)


def test_every_command_of_a_run_is_derived_again(tmp_path, capsys):
    run = AnsweredRun(tmp_path / "run.db", steps=4, release=OTHER_RELEASE)
    run.to_the_end()
    verdict = replayed(tmp_path)
    assert verdict.is_equal
    assert verdict.finished
    assert (verdict.events, verdict.unfingerprinted, verdict.steps) == (run.events, 0, 4)
    assert verdict.commands["Train"] == 4
    assert verdict.commands["Finish"] == 1
    assert verdict.time_s == run.now
    assert main(["replay", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"Every command of {run.events} events was re-derived bit for bit." in said
    assert "made by another release" in said


def test_the_first_event_with_other_commands_is_named_with_what_comes_out_now(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    with Recording(tmp_path) as recording:
        busy = [r.number for r in recording.events() if r.fingerprint != NOTHING]
    for number in (busy[5], busy[-1]):
        execute(
            tmp_path / "run.db",
            "UPDATE fingerprints SET digests = ? WHERE first_seq = ?",
            (b"12345678", number),
        )
    difference = replayed(tmp_path).difference
    assert difference is not None
    assert difference.recorded.number == busy[5]
    assert difference.commands
    assert main(["replay", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"The first difference is at event {busy[5]}, 0." in said
    assert "Send(peer=" in said
    assert said.endswith("Expected the commands that the run made; use the release that made it.\n")


def test_a_strategy_that_was_edited_since_is_named_as_what_may_decide_otherwise(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "chooses_otherwise_later.py"
    code = "def choose(work, instances, settings):\n    return instances[{}].id\n"
    file.write_text(code.format(0))
    name = f"{file}:choose"
    run = AnsweredRun(tmp_path / "run.db", steps=2, routing=name)
    run.to_the_end()
    run.store.close()
    file.write_text(code.format("-1"))
    for module in [name for name, one in sys.modules.items() if getattr(one, "__file__", "") == str(file)]:
        monkeypatch.delitem(sys.modules, module)
    assert main(["replay", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"if staleness.routing ({name}) has been edited since, replay with it as it was" in said


def test_another_time_of_an_event_is_noticed(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    execute(tmp_path / "run.db", "UPDATE events SET now = now + 0.000001 WHERE seq > 20")
    assert not replayed(tmp_path).is_equal


def test_a_killed_controller_leaves_a_tail_that_is_said_and_no_failure(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=3).to_the_end(max_events=30, flush=False)
    verdict = replayed(tmp_path)
    assert verdict.is_equal
    assert not verdict.finished
    assert verdict.unfingerprinted == 1
    assert main(["replay", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "The last 1 events have no fingerprint" in said
    assert "Every command of 29 events" in said


def test_an_event_at_which_the_core_fails_is_named(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    execute(tmp_path / "run.db", "UPDATE events SET now = -1.0 WHERE seq = 9")
    with pytest.raises(RunError, match=r"The core fails at event 9 .* AssertionError: time went back"):
        replayed(tmp_path)
    assert main(["replay", str(tmp_path)]) == 1
    assert "The core fails at event 9" in capsys.readouterr().err


def test_the_story_of_a_group_goes_from_its_row_to_its_last_payload(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=4).to_the_end()
    with Recording(tmp_path) as recording:
        lines = list(story(recording, 2))
    order = [
        "its row was read", "Encode", "encoded, 3 prompt tokens", "Route 2.0 attempt 1",
        "= generating: began at", "by version", "ends by stop", "Score attempt 1", "rewards 0, 0.5",
        "Train 2.0 in the batch of", "= training", "= gone from the system", "its payload is dropped",
    ]  # fmt: skip
    places = [next(i for i, line in enumerate(lines) if words in line) for words in order]
    assert places == sorted(places)
    assert not [line for line in lines if " 3.0 " in line]
    assert main(["story", str(tmp_path), "2"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["replay", str(tmp_path), "--story", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


def test_a_group_that_never_was_is_refused(tmp_path, capsys):
    AnsweredRun(tmp_path / "run.db", steps=1).to_the_end()
    assert main(["story", str(tmp_path), "9999"]) == 1
    assert "names group 9999" in capsys.readouterr().err
