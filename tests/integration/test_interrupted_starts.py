"""Ctrl-C before a run has begun: in words, with exit code 130, and nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.ends import has_ended
from tests.support.installing import GATED_PIP, PIP, started

ROOT = Path(__file__).resolve().parents[2]
STOPPED = 130
LIMIT_S = 300

INTERRUPTED_IMPORT = """
import builtins, os, runpy, signal, sys
whole = builtins.__import__
def interrupted(name, *rest, **more):
    if name == sys.argv[1]:
        sys.argv[:] = ["launch.py", "check", "examples/quickstart.yaml"]
        os.kill(os.getpid(), signal.SIGINT)
    return whole(name, *rest, **more)
builtins.__import__ = interrupted
runpy.run_path("launch.py", run_name="__main__")
"""

FACTORY = """
import signal
def make(directory, *, seed, progress):
    open(f"{directory}/half a model", "w").close()
    progress(0.5, "half of it")
    signal.pause()

def reward(completion):
    return 1.0
"""

SLOW = """
import json, os, signal
from pathlib import Path

HERE = Path(__file__).parent

def make(directory, *, seed, progress):
    Path(directory, "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 12}))

def reward(completion):
    return 1.0

if "workers.reward" in Path("/proc/self/cmdline").read_text():
    (HERE / "started").write_text(str(os.getpid()))  # waits for its reader
    signal.pause()
"""


@pytest.mark.parametrize(
    "module", ["install", "controller.cli.main", "pydantic", "yaml", "controller.check.problems"]
)
def test_while_modules_are_imported(module):
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (STOPPED, "")
    assert done.stderr == "\nStopped.\n"


def test_while_modules_are_imported_and_nobody_reads_its_words():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "install"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=writer, timeout=LIMIT_S)
    os.close(writer)
    assert (done.returncode, done.stdout) == (STOPPED, b"")


@pytest.mark.costly
def test_while_the_initial_model_is_made_and_the_next_start_finds_nothing(tmp_path):
    (tmp_path / "factory.py").write_text(FACTORY)
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    config = tmp_path / "run.yaml"
    config.write_text(
        "run: {name: run, dir: runs}\nmodel: {factory: 'factory.py:make'}\ndata: {path: data.jsonl}\n"
        "reward: {function: 'factory.py:reward'}\n"
    )
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, ROOT / "launch.py", str(config)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "half of it" in line:
                process.send_signal(signal.SIGINT)
        process.stdout.close()
        assert process.wait(LIMIT_S) == STOPPED, lines
        assert lines[-1] == "Stopped before the run had begun.\n"
        assert not any("Traceback" in line for line in lines)
        run = tmp_path / "runs" / "run"
        assert not [path.name for path in run.iterdir() if path.name.startswith(".")]
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
            ".run.lock",
            ".run.view",
            "run",
        ]


def test_while_workers_start_as_later_and_the_same_command_goes_on(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "data.jsonl").write_text('{"prompt": "a"}\n')
    os.mkfifo(tmp_path / "started")
    config = tmp_path / "run.yaml"
    config.write_text(
        "run: {name: run, dir: runs, steps: 9}\nmodel: {factory: 'slow.py:make'}\ndata: {path: data.jsonl}\n"
        "reward: {function: 'slow.py:reward', workers: 1, processes: 1}\n"
        "rollout: {instances: 0}\ntrainer: {local: false}\n"
    )
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, ROOT / "launch.py", str(config)],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        read = ["cat", str(tmp_path / "started")]
        starting = int(subprocess.run(read, capture_output=True, text=True, timeout=LIMIT_S).stdout)
        workers = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert starting in workers
        process.send_signal(signal.SIGINT)
        told, warned = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, warned
        said = "Stopping: the step in hand is finished and a checkpoint saved. Again to stop at once.\n"
        assert warned.endswith(said)
        assert "Traceback" not in warned
        assert "Stopped after 0 of 9 train steps at your request. The same command goes on.\n" in told
        assert all(map(has_ended, workers))  # the server that forks them sees its parent's end a moment later
        run = tmp_path / "runs" / "run"
        assert json.loads((run / "summary.json").read_text())["ending"] == "stopped"
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
            ".run.lock",
            ".run.view",
            "run",
        ]


@pytest.mark.parametrize("mode", ["", "was there", "slow venv"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_dependencies_are_installed(tmp_path, mode, number):
    process = started(tmp_path, PIP, mode)
    process.send_signal(number)
    _, words = process.communicate(timeout=LIMIT_S)
    assert_given_up(process, words, tmp_path, is_there=mode == "was there")


def test_by_signal_after_signal_while_dependencies_are_installed(tmp_path):
    process = started(tmp_path, PIP)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=LIMIT_S)
    assert_given_up(process, words, tmp_path, is_there=False)


def test_nohup_lets_it_install_on_when_the_terminal_is_closed(tmp_path):
    os.mkfifo(tmp_path / "gate")
    process = started(tmp_path, GATED_PIP, before=["nohup"])
    process.send_signal(signal.SIGHUP)
    (tmp_path / "gate").write_text("on\n")
    told, words = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, words
    assert f"goes on in words: {tmp_path / 'launch.py'} status\n" in told


def assert_given_up(process: subprocess.Popen[str], words: str, folder: Path, *, is_there: bool) -> None:
    assert process.returncode == STOPPED
    assert words.startswith("\nStopped while installing; no process is left, and ")
    assert (folder / ".venv").exists() == is_there
    for pid in (folder / "pids").read_text().split():
        assert has_ended(int(pid))  # it was sent SIGKILL, and is waited for by nobody here
