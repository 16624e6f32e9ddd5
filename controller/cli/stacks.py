"""`launch.py stacks RUN`: where each process of a run stands, line by line, when it hangs.

Invariant: a process is signalled only if the kernel says that it listens for that signal, which would end it
otherwise.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from controller.cli.command_line import Run
from controller.cli.say import say
from controller.durability.holder import controller_of
from protocol.errors import RunError
from protocol.stacks import SIGNAL

PROCESSES = Path("/proc")
HOST, KEEPER, PREPARE = "workers.host", "workers.children.keeper", "workers.models.prepare"


class Found(NamedTuple):
    """A process of the run, and the file that its stacks go to."""

    name: str
    pid: int
    log: str


def stacks(run: Run) -> None:
    """Write the stacks of all threads of the controller and of every local worker to their logs.

    A worker that was attached by hand does so on `kill -USR1 PID`.
    """
    if not PROCESSES.is_dir():
        raise RunError(
            "This machine has no /proc, which tells the processes of a run. Expected Linux; by hand: "
            "kill -USR1 PID, for a pid that `ps` shows with workers.host."
        )
    directory = Path(run)
    controller = controller_of(directory)
    if controller is None:
        raise RunError(f"No controller is at work on {run}, so none of its local workers is either.")
    for name, pid, log in [
        Found("controller", controller, str(directory / "logs" / "controller.log")),
        *processes_of(controller),
    ]:
        if not listens(pid):
            say(f"{name} (pid {pid}) was not asked: it is only starting, or ending, or not Python's.")
            continue
        try:
            os.kill(pid, SIGNAL)
        except OSError as error:
            say(f"{name} (pid {pid}) cannot be asked: {error.strerror}.")
            continue
        say(f"{name} (pid {pid}): its stacks are at the end of {log}")


def processes_of(controller: int) -> Iterator[Found]:
    """Local workers of a controller, all trainer ranks among them, and what those have started."""
    commands = {pid: command for pid in _pids() if (command := _command(pid))}
    workers = {
        pid for pid, command in commands.items() if HOST in command and f"--parent={controller}" in command
    }
    for pid in sorted(workers):
        command = commands[pid]
        name = command[command.index("--name") + 1] if "--name" in command else "worker"
        yield Found(name, pid, _log(pid))
    for pid, command in sorted(commands.items()):
        if _parent(pid) not in {controller, *workers}:
            continue
        if PREPARE in command:
            yield Found("prepare", pid, _log(pid))
        if KEEPER in command:  # the user's code runs in a fork of it, beside what that has started
            forks = [child for child in sorted(commands) if _parent(child) == pid]
            role = command[command.index(KEEPER) + 1].split(".")[1]
            yield from (
                Found(f"{role}_process", child, _log(child)) for child in forks if commands[child] == command
            )


def listens(pid: int) -> bool:
    """Whether the process has a handler for the signal."""
    caught = _field(pid, "SigCgt")
    return caught is not None and bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit()]


def _command(pid: int) -> list[str]:
    """Its arguments; [] if it has ended, or is another user's."""
    try:
        return (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    found = _field(pid, "PPid")
    return int(found) if found else 0


def _field(pid: int, name: str) -> str | None:
    try:
        text = (PROCESSES / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return None
    return next((line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:")), None)


def _log(pid: int) -> str:
    try:
        return os.readlink(PROCESSES / str(pid) / "fd" / "2")
    except OSError:
        return "its standard error"
