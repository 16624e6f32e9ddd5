"""The command line's exit codes, and what Ctrl-C does."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import STOPPED_AT_ONCE, main, run_until_interrupted, workers_in_words
from controller.config.models import Config

ROOT = Path(__file__).resolve().parents[4]


def test_a_sound_configuration_checks_with_0(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(ROOT / "examples" / "quickstart.yaml")]) == 0
    assert "0 errors" in capsys.readouterr().out


def test_a_wrong_configuration_or_command_line_ends_with_2_and_its_reason(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("STALEFLOW_NO_INSTALL", "1")  # or it goes on in a .venv if packages are missing here
    assert main(["nowhere.yaml"]) == 2
    assert "There is no file nowhere.yaml" in capsys.readouterr().err
    file = tmp_path / "empty.yaml"
    file.write_text("")
    assert main(["check", str(file)]) == 2
    assert "error: data.path: is empty" in capsys.readouterr().out
    assert main([str(file)]) == 2
    assert "The run cannot start:" in capsys.readouterr().err
    assert main(["check", str(file), "run.stesp=1"]) == 2
    assert "Did you mean `run.steps`?" in capsys.readouterr().err
    assert main(["--no-such-option"]) == 2


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        (2, "2 rollout, 1 reward, 1 trainer"),
        (0, "0 rollout, 1 reward, 1 trainer; attach one with `launch.py attach RUN --role rollout`"),
    ],
)
def test_a_start_says_which_workers_must_attach(rollout, words):
    """A run that is started again says it again."""
    assert workers_in_words(Config.model_validate({"rollout": {"instances": rollout}})) == words


def test_the_first_ctrl_c_asks_for_a_good_end(capsys):
    reasons: list[str] = []

    async def work(stopping) -> int:
        stopped = asyncio.Event()

        def stop(reason: str) -> None:
            reasons.append(reason)
            stopped.set()

        stopping.use(stop)
        os.kill(os.getpid(), signal.SIGINT)
        await stopped.wait()
        return 0

    assert run_until_interrupted(work) == 0
    assert reasons == ["interrupted by the operator"]
    assert "Again to stop at once" in capsys.readouterr().err


def test_the_second_ctrl_c_ends_everything_at_once():
    async def work(stopping) -> int:
        stopping.use(lambda reason: os.kill(os.getpid(), signal.SIGINT))
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(asyncio.CancelledError, match="The operator stopped it at once"):
            await asyncio.Event().wait()
        raise asyncio.CancelledError

    assert run_until_interrupted(work) == STOPPED_AT_ONCE


def test_ctrl_c_before_the_run_has_begun_ends_the_program():
    async def work(stopping) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return 0

    assert run_until_interrupted(work) == STOPPED_AT_ONCE


HUNG_UP = """
import signal, sys
from controller.cli.main import run_until_interrupted
from tests.support.hanging_up import hang_up_twice
signal.signal(signal.SIGHUP, signal.Handlers[sys.argv[1]])
async def work(stopping):
    stops = []
    stopping.use(stops.append)
    await hang_up_twice()
    return 10 + len(stops)
sys.exit(run_until_interrupted(work))
"""


@pytest.mark.parametrize(("before", "stops"), [("SIG_DFL", 1), ("SIG_IGN", 0)])
def test_a_closed_terminal_asks_for_a_good_end_once_and_nohup_for_none(before, stops):
    command = [sys.executable, "-c", HUNG_UP, before]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 10 + stops


AT_ONCE = """
import asyncio, os, signal, sys
from controller.cli.main import run_until_interrupted
async def work(stopping):
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
sys.exit(run_until_interrupted(work))
"""
OF_MAIN = "import sys; from controller.cli.main import main; sys.exit(main(sys.argv[1:]))"
INTERRUPTED = """
import os, signal, sys
from controller.cli import main
main.find_problems = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("program", "arguments", "code"),
    [
        (AT_ONCE, (), STOPPED_AT_ONCE),
        (OF_MAIN, ("nowhere.yaml",), 2),
        (INTERRUPTED, ("check", "examples/quickstart.yaml"), STOPPED_AT_ONCE),
    ],
    ids=["at once", "a wrong configuration", "while nothing runs"],
)
def test_the_exit_code_is_the_same_if_nobody_reads_what_is_said(program, arguments, code):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", program, *arguments]
    try:
        assert subprocess.run(command, cwd=ROOT, stderr=write, check=False).returncode == code
    finally:
        os.close(write)


def test_without_dependencies_and_installing_the_missing_modules_are_named():
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(ROOT / "launch.py"), "check", "x.yaml"],
        env=os.environ | {"STALEFLOW_NO_INSTALL": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "lacks zmq, msgpack" in done.stderr
    assert "unset STALEFLOW_NO_INSTALL" in done.stderr
