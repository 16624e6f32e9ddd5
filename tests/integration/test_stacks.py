"""`launch.py stacks RUN` on real processes: a worker that waits, a reward function that never returns."""

import os
import select
import socket
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import psutil
import pytest

from controller.cli.main import main
from controller.view import stacks
from controller.view.stacks import MOST_BYTES, Found, listens, stacks_of
from protocol.errors import RunError
from protocol.rewards.kinds import FunctionReward
from workers.children.packets import SECRET_BYTES, packet
from workers.reward.kinds.interface import Place
from workers.reward.pipe import SCORE, SETUP

ROOT = Path(__file__).resolve().parents[2]
HANGING = """
import os

def score(completion, gate):
    # the first tells the test that this line was reached; nobody will open the other end of the second
    return os.close(os.open(gate, os.O_WRONLY)) or os.open(gate + ".never", os.O_RDONLY)
"""


@pytest.fixture
def run(tmp_path):
    """A run directory that this very process holds, as its controller would."""
    (tmp_path / ".run.lock").write_text(str(os.getpid()))
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def start(run):
    """Starts a child whose log is a pipe by name, so that reading it waits for what is written."""
    children = []

    def begin(name, *arguments, **options):
        log = run / "logs" / f"{name}.log"
        os.mkfifo(log)
        reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(reader, True)
        with log.open("wb") as writer:
            child = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stderr=writer, **options)
        children.append(child)
        return child, os.fdopen(reader, "r")

    yield begin
    for child in children:
        child.kill()
        child.wait()


def stacks_in(log):
    """The lines of a dump, up to the deepest frame of the main thread."""
    lines = []
    while not lines or "_run_module_as_main" not in lines[-1]:
        lines.append(log.readline())
        assert lines[-1], f"the log ended after {lines}"
    return "".join(lines)


def test_a_worker_that_waits_shows_where(run, start, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        arguments = (address, "--role", "rollout", "--name", "rollout-7", f"--parent={os.getpid()}")
        child, log = start("rollout-7", "workers.host", *arguments)
        peer, _ = server.accept()  # it has come so far
        assert main(["stacks", str(run)]) == 0
        with peer, log:
            dump = stacks_in(log)
    assert "most recent call first" in dump
    assert "workers/host/serve.py" in dump
    told = capsys.readouterr().out
    assert f"rollout-7 (pid {child.pid}): its stacks are at the end of {run}/logs/rollout-7.log" in told
    assert f"controller (pid {os.getpid()}) was not asked" in told  # pytest listens for no such signal
    assert child.poll() is None


def first_of(child, gate):
    """What is first: the gate is gone through, or the child ends."""
    waits = select.poll()
    reached, ended = os.open(gate, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(child.pid)
    try:
        waits.register(reached, select.POLLIN)
        waits.register(ended, select.POLLIN)
        return "gate" if reached in dict(waits.poll()) else "end"
    finally:
        os.close(reached)
        os.close(ended)


def test_a_reward_function_that_hangs_is_shown_by_file_and_line(run, start, tmp_path, capsys):
    file, gate = tmp_path / "rewards.py", tmp_path / "gate"
    file.write_text(HANGING)
    os.mkfifo(gate)
    os.mkfifo(f"{gate}.never")
    child, log = start(
        "reward-0", "workers.children.keeper", "workers.reward.process", f"{file}:score", "4096",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    row = f'{{"gate": "{gate}"}}'.encode()
    reward = FunctionReward(function=f"{file}:score").model_dump_json().encode()
    setup = packet(SETUP, reward, *astuple(Place("")))
    score = packet(SCORE, 1, 0, row, b"p", [1], ["c"], [[2]], ["stop"])
    child.stdin.write(bytes(SECRET_BYTES) + setup + score)
    child.stdin.flush()
    assert first_of(child, gate) == "gate"
    (fork,) = psutil.Process(child.pid).children()
    assert listens(fork.pid)
    assert main(["stacks", str(run)]) == 0
    with log, child.stdin, child.stdout:
        dump = stacks_in(log)
    assert f'"{file}", line 6 in score' in dump
    assert f"reward_process (pid {fork.pid})" in capsys.readouterr().out


def test_the_page_shows_what_a_worker_writes_and_names_those_there_are(run):
    log = run / "logs" / "rollout-7.log"
    log.write_text("before\n")
    with socket.create_server(("127.0.0.1", 0)) as server, log.open("ab") as writer:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        arguments = (address, "--role", "rollout", "--name", "rollout-7", f"--parent={os.getpid()}")
        words = [sys.executable, "-m", "workers.host", *arguments]
        with subprocess.Popen(words, cwd=ROOT, stderr=writer) as child:
            peer, _ = server.accept()  # it has come so far
            (found,) = stacks_of(run, "rollout-7")
            with pytest.raises(RunError, match=r"No process of 'rollout-8' .* controller, rollout-7"):
                stacks_of(run, "rollout-8")
            (controller,) = stacks_of(run, "controller")
            peer.close()
            child.kill()
    assert (found["name"], found["pid"], found["log"]) == ("rollout-7", child.pid, str(log))
    assert "most recent call first" in found["text"]
    assert "workers/host/serve.py" in found["text"]
    assert "before" not in found["text"]
    assert "was not asked" in controller["text"]  # pytest listens for no such signal


def test_workers_that_were_forked_and_what_they_have_started_are_found(tmp_path, monkeypatch):
    """Of a fork /proc has its title alone, and its parent is the fork server."""
    keeper = f"python -m {stacks.KEEPER} workers.reward.process a.py:f 4096"
    there = {
        1: (0, "python launch.py a.yaml"),
        2: (1, "python -P -m workers.host.fork_server 32 --parent=1"),
        3: (2, ["python -m workers.host ipc:///x --role rollout --name rollout-0 --parent=2", "", ""]),
        4: (2, ["python -m workers.host ipc:///x --role reward --name reward-0 --parent=2"]),
        5: (4, keeper),
        6: (5, keeper),
        7: (1, "python -m workers.host ipc:///x --role trainer --name trainer-0 --parent=1"),
        8: (2, ["python -P -m workers.models.prepare --factory f"]),
        9: (0, "python -P -m workers.host.fork_server 32 --parent=99"),
        10: (9, ["python -m workers.host ipc:///y --role rollout --name rollout-0 --parent=9"]),
    }
    for pid, (parent, words) in there.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        words = words if isinstance(words, list) else words.split()
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (folder / "status").write_text(f"Name:\tpython\nPPid:\t{parent}\n")
    monkeypatch.setattr(stacks, "PROCESSES", tmp_path)
    assert [(one.name, one.pid, one.worker) for one in stacks._workers_of(1)] == [
        ("rollout-0", 3, "rollout-0"),
        ("reward-0", 4, "reward-0"),
        ("trainer-0", 7, "trainer-0"),
        ("reward_process", 6, "reward-0"),
        ("prepare", 8, "controller"),
    ]


def test_of_a_log_no_more_is_shown_than_a_page_can_have(tmp_path, monkeypatch):
    log = tmp_path / "worker.log"
    log.write_text("old")
    found = Found("worker", 1, str(log), "worker")

    def written(one):
        with log.open("a") as file:
            file.write("x" * (2 * MOST_BYTES))
        return ""

    monkeypatch.setattr(stacks, "ask", written)
    assert stacks._told(found) == "x" * MOST_BYTES
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(stacks, "ask", lambda one: "")
    monkeypatch.setattr(stacks, "WRITTEN_S", 0.0)
    assert "no file that could be shown" in stacks._told(found._replace(log=str(tmp_path / "fifo")))
    assert "cannot be read here" in stacks._told(found._replace(log="pipe:[7]"))
    assert "Nothing has come" in stacks._told(found)


def test_a_run_without_a_controller_has_nothing_to_show(tmp_path, capsys):
    assert main(["stacks", str(tmp_path / "nowhere")]) == 1
    assert "No controller is at work" in capsys.readouterr().err
