"""What a person may have meant by a command line that is none."""

import errno

import pytest
import typer

from controller.cli.command_line import KNOWN_ELSEWHERE, as_command
from controller.cli.main import app, main
from protocol.errors import ConfigError

COMMANDS = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["statsu", "runs/a"], "`status`"),
        (["chekc", "a.yaml"], "`check`"),
        (["train", "a.yaml"], "`run`"),
        (["Replay", "runs/a"], "`replay`"),
        (["quickstart"], "Did you mean examples/quickstart.yaml?"),
        (["frobnicate"], f"The commands are {', '.join(sorted(COMMANDS))}."),
    ],
)
def test_a_word_that_is_no_command_leads_to_one(words, meant, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"There is no command `{words[0]}`" in said
    assert meant in said


def test_what_is_known_elsewhere_leads_to_commands_of_ours():
    assert set(KNOWN_ELSEWHERE.values()) <= COMMANDS
    assert not set(KNOWN_ELSEWHERE) & COMMANDS


def test_a_configuration_is_run_whatever_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "statsu").write_text("")
    assert as_command(["statsu"], COMMANDS) == ["run", "statsu"]
    for name in ("nowhere.yaml", "folder/statsu"):
        assert as_command([name, "run.steps=1"], COMMANDS) == ["run", name, "run.steps=1"]
    assert as_command(["status", "runs/a"], COMMANDS) == ["status", "runs/a"]
    assert as_command([], COMMANDS) == []


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["a.yaml", "--trainer.lr=1e-5"], "trainer.lr=1e-5"),
        (["check", "a.yaml", "--trainer.batch-groups", "8"], "trainer.batch_groups=8"),
        (["a.yaml", "--run.steps"], "run.steps=VALUE"),
    ],
)
def test_a_key_with_dashes_is_written_out_as_it_should_be(words, written):
    with pytest.raises(ConfigError, match=f"without dashes: {written}$"):
        as_command(words, COMMANDS)


def test_options_stay_options():
    words = ["simulate", "a.yaml", "--compare", "sync,greedy", "-o", "out.d"]
    assert as_command(words, COMMANDS) == words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("samples r --by foo", "'--by': 'foo' is not one of 'version', 'logprob', 'drift', 'weight'. `"),
        ("samples r --step x", "Invalid value for '--step': expected a whole number. `"),
        ("samples r --reward-from x", "Invalid value for '--reward-from': expected a number. `"),
        ("samples r --limit 0", "'--limit': expected a number greater than or equal to 1. `"),
        ("samples r --sep 2", "No such option: --sep (Possible options: --help, --step, --up). `"),
        ("samples", "Missing argument 'RUN'. `"),
        ("story r 1 2", "There are more arguments than it takes: (2). `"),
    ],
)
def test_what_is_not_understood_is_one_sentence_that_says_where_to_look(words, said, capsys):
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.endswith(f"`launch.py {words.split()[0]} --help` has what it takes.\n")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_no_words_at_all_are_answered_with_the_help(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert "Usage: launch.py" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(("raised", "code"), [(typer.Exit(3), 3), (typer.Exit(), 0), (typer.Abort(), 130)])
def test_how_a_command_ends_is_the_exit_code(monkeypatch, raised, code):
    def end(run):
        raise raised

    (stop,) = [command for command in app.registered_commands if command.callback.__name__ == "stop"]
    monkeypatch.setattr(stop, "callback", end)
    monkeypatch.setattr(stop, "name", "stop")
    assert main(["stop", "runs/a"]) == code


LONG = "x" * 256
OF_A_RUN = ("status", "samples", "replay", "story", "trace", "profile", "export", "view")


@pytest.mark.parametrize("command", OF_A_RUN)
def test_a_name_that_no_disk_has_is_refused_in_a_sentence(command, capsys):
    further = {"story": ["1"], "export": ["--to", "tensorboard"]}.get(command, [])
    assert main([command, LONG, *further]) == 2
    said = capsys.readouterr().err
    assert f"{LONG} cannot be used: " in said.replace(f"{LONG}/summary.json", LONG)
    assert said.endswith("File name too long. Expected at most 4,095 bytes, and 255 in each name: "
                         "give a shorter path.\n")  # fmt: skip


def test_a_run_name_that_no_disk_has_is_refused_in_a_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")  # or it goes on in a .venv if packages are missing here
    (tmp_path / "run.yaml").write_text("model: {factory: mine.py:make}")
    for command in ("check", "run"):
        assert main([command, str(tmp_path / "run.yaml"), f"run.dir={tmp_path}", f"run.name={LONG}"]) == 2
        assert "cannot be used: File name too long" in capsys.readouterr().err


def test_what_somebody_else_has_closed_is_named_and_other_errors_are_not_hidden(monkeypatch, capsys):
    (stop,) = [command for command in app.registered_commands if command.callback.__name__ == "stop"]
    monkeypatch.setattr(stop, "name", "stop")

    def fail(run):
        raise OSError(errno.EACCES, "Permission denied", run)

    monkeypatch.setattr(stop, "callback", fail)
    assert main(["stop", "theirs/run"]) == 2
    assert capsys.readouterr().err.startswith(
        "theirs/run cannot be used: Permission denied. Expected files that you may use, in folders that"
    )

    def fail_otherwise(run):
        raise OSError(errno.EIO, "Input/output error", run)

    monkeypatch.setattr(stop, "callback", fail_otherwise)
    with pytest.raises(OSError, match="Input/output"):
        main(["stop", "theirs/run"])
