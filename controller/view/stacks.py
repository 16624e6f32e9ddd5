"""The stacks of a run's processes on this machine: found in /proc, asked by a signal, read from the log.

Invariants: a process is signalled only if the kernel says that it listens for that signal, which would end it
otherwise; it writes its stacks itself, and nothing is stopped; of a log no more is read than MOST_BYTES
behind the question, and only if it is a plain file.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from controller.durability.holder import controller_of
from protocol.errors import RunError
from protocol.files import is_dir
from protocol.stacks import SIGNAL

PROCESSES = Path("/proc")
HOST, FORKS, PREPARE = "workers.host", "workers.host.fork_server", "workers.models.prepare"
KEEPER = "workers.children.keeper"
MOST_BYTES = 128 << 10  # 100 threads of 15 frames each
MOST_PROCESSES = 32  # of one worker
WRITTEN_S = 2.0  # for a process to write its stacks; one that the kernel holds writes them later
SLICE_S, STILL_SLICES = 0.02, 3  # between two looks at its log, which says nothing when it is whole


class Found(NamedTuple):
    """A process of the run, and the log file for its stacks."""

    name: str
    pid: int
    log: str
    worker: str  # that it belongs to, by name; `controller`


def of_run(run: Path) -> list[Found]:
    """The controller and all processes of its local workers. Raises: RunError if there are none here."""
    if not is_dir(PROCESSES):
        raise RunError(
            "This machine has no /proc, which tells the processes of a run. Expected Linux; by hand: "
            "kill -USR1 PID, for a pid that `ps` shows with workers.host."
        )
    controller = controller_of(run)
    if controller is None:
        raise RunError(f"No controller is at work on {run}, so none of its local workers is either.")
    log = str(run / "logs" / "controller.log")
    return [Found("controller", controller, log, "controller"), *_workers_of(controller)]


def ask(found: Found) -> str:
    """Have a process write its stacks to its log; why it was not asked, or ""."""
    if not listens(found.pid):
        return "was not asked: it is only starting, or ending, or not Python's."
    try:
        os.kill(found.pid, SIGNAL)
    except OSError as error:
        return f"cannot be asked: {error.strerror}."
    return ""


def stacks_of(run: Path, worker: str) -> list[dict[str, Any]]:
    """Where each process of one worker, or of `controller`, stands now.

    Raises: RunError if there is no such worker on this machine.
    """
    found = of_run(run)
    asked = [one for one in found if one.worker == worker][:MOST_PROCESSES]
    if not asked:
        names = ", ".join(sorted({one.worker for one in found}))
        raise RunError(
            f"No process of {worker[:80]!r} is on this machine; expected one of {names}. A worker that was "
            "attached by hand writes its stacks to its standard error on `kill -USR1 PID`, where it is."
        )
    return [{"name": one.name, "pid": one.pid, "log": one.log, "text": _told(one)} for one in asked]


def _told(found: Found) -> str:
    """The stacks of a process, which may have its log in common with others; or why there are none."""
    begin = _size(found.log)
    return ask(found) or _written(found.log, begin)


def listens(pid: int) -> bool:
    """Whether the process has a handler for the signal."""
    caught = _field(pid, "SigCgt")
    return caught is not None and bool(int(caught, 16) >> (SIGNAL - 1) & 1)


def _written(log: str, begin: int) -> str:
    """What a log says behind `begin`, as soon as it says something and then no more."""
    still, last, until = 0, begin, time.monotonic() + WRITTEN_S
    while time.monotonic() < until and still < STILL_SLICES:
        time.sleep(SLICE_S)  # another process's file: nobody tells when it has grown
        size = _size(log)
        still = still + 1 if size == last > begin else 0
        last = size
    text = _read(log, begin)
    return (
        text
        or f"Nothing has come to {log} within {WRITTEN_S:g} s; it is there when the process can write it."
    )


def _size(log: str) -> int:
    try:
        found = os.stat(log)
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _read(log: str, begin: int) -> str:
    """At most MOST_BYTES of a plain file."""
    try:
        file = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"Its stacks are in {log}, which cannot be read here: {error.strerror}."
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return f"Its stacks went to {log}, which is no file that could be shown."
        return os.pread(file, MOST_BYTES, begin).decode(errors="replace")
    finally:
        os.close(file)


def _workers_of(controller: int) -> Iterator[Found]:
    """Local workers of a controller, all trainer ranks among them, and what those have started."""
    commands = {pid: command for pid in _pids() if (command := _command(pid))}
    tie = f"--parent={controller}"
    parents = {controller, *(pid for pid, command in commands.items() if FORKS in command and tie in command)}
    ties = {f"--parent={pid}" for pid in parents}  # of its fork server, too, which ends with it
    workers = {
        pid: command[command.index("--name") + 1] if "--name" in command[:-1] else "worker"
        for pid, command in sorted(commands.items())
        if HOST in command and not ties.isdisjoint(command)
    }
    for pid, name in workers.items():
        yield Found(name, pid, _log(pid), name)
    for pid, command in sorted(commands.items()):
        parent = _parent(pid)
        if parent not in parents and parent not in workers:
            continue
        worker = workers.get(parent, "controller")
        if PREPARE in command:
            yield Found("prepare", pid, _log(pid), worker)
        if KEEPER in command[:-1]:  # the user's code runs in a fork of it, beside what that has started
            forks = [child for child in sorted(commands) if _parent(child) == pid]
            name = f"{command[command.index(KEEPER) + 1].split('.')[1]}_process"
            yield from (Found(name, one, _log(one), worker) for one in forks if commands[one] == command)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdigit()]


def _command(pid: int) -> list[str]:
    """Its arguments; of a fork the words of its title; [] if it has ended, or is another user's."""
    try:
        told = (PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    words = [word for word in told.split("\0") if word]
    return words[0].split() if len(words) == 1 else words


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
