"""What commands print of files and of runs drives no terminal; what takes long says how far it is."""

import json

import pytest

from controller.cli.looking import history
from controller.cli.main import main
from tests.support.answered_run import AnsweredRun

ESCAPES = "\x1b]0;pwned\x07\x1b[2J"
AS_SHOWN = r"\x1b]0;pwned\x07\x1b[2J"


@pytest.fixture
def run(tmp_path):
    AnsweredRun(tmp_path / "run.db", steps=2).to_the_end()
    return tmp_path


def told(capsys):
    """All that was printed: without control characters, and with the escapes of those that were there."""
    said = capsys.readouterr()
    text = said.out + said.err
    assert not set("\x1b\x07") & set(text)
    return text


def test_check_shows_names_from_a_configuration(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    tree = {
        "run": {"dir": str(tmp_path)},
        "data": {"path": f"{ESCAPES}.jsonl"},
        "reward": {"function": f"{ESCAPES}.py:score"},
        "model": {"path": f"a model\r\n{ESCAPES}"},
    }
    config.write_text(json.dumps(tree))
    assert main(["check", str(config)]) == 2
    text = told(capsys)
    assert f"{AS_SHOWN}.jsonl" in text
    assert f"{AS_SHOWN}.py" in text
    assert f"a model\n{AS_SHOWN}" in text


def test_check_shows_the_name_of_the_configuration(tmp_path, capsys):
    config = tmp_path / f"{ESCAPES}.yaml"
    config.write_text("")
    main(["check", str(config)])
    assert f"{AS_SHOWN}.yaml: " in told(capsys)


def test_status_shows_how_a_run_ended(tmp_path, capsys):
    summary = {"is_success": False, "reason": f"The disk of {ESCAPES} is full.", "steps": 0}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "config.yaml").write_text("")
    assert main(["status", str(tmp_path)]) == 0
    assert f"The disk of {AS_SHOWN} is full." in told(capsys)


def test_story_shows_lines_of_a_group(run, capsys, monkeypatch):
    monkeypatch.setattr(history, "tell", lambda recording, group: [f"group {group}: {ESCAPES}"])
    assert main(["story", str(run), "0"]) == 0
    assert f"group 0: {AS_SHOWN}" in told(capsys)


@pytest.mark.parametrize("command", ["trace", "story", "replay"])
def test_reading_a_history_says_how_far_it_is(run, capsys, monkeypatch, command):
    rest = {"trace": ["-o", str(run / "trace.json")], "story": ["0"], "replay": []}[command]
    assert main([command, str(run), *rest]) == 0
    assert "] event " not in told(capsys), "it took no time"
    monkeypatch.setattr(history, "TELL_S", 0.0)
    monkeypatch.setattr("controller.durability.recording.AT_ONCE", 5)
    assert main([command, str(run), *rest]) == 0
    lines = [line for line in told(capsys).splitlines() if "] event " in line]
    numbers = [int(line.split("] event ")[1].split(" of ")[0].replace(",", "")) for line in lines]
    last = {line.rpartition(" of ")[2] for line in lines}
    assert len(lines) > 3
    assert numbers == sorted(numbers)
    assert last == {f"{max(numbers):,}"} or max(numbers) < int(last.pop().replace(",", ""))
