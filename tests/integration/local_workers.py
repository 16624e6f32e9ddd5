"""The local worker processes of a run, found as a person finds them: by their command lines."""

import contextlib
import os

import psutil

STAYING = ("workers.host.fork_server", "multiprocessing.resource_tracker")


def local_workers(name: str, *, of: int | None = None) -> list[psutil.Process]:
    """The processes of the worker with this name below a controller process, by default this one."""
    return [process for process in below(of) if f" --name {name} " in f"{command_line(process)} "]


def below(pid: int | None = None) -> list[psutil.Process]:
    """All that a process has started, and what that has; but for what stays.

    That is the server that forks, and the tracker that Python's multiprocessing starts.
    """
    found = psutil.Process(os.getpid() if pid is None else pid).children(recursive=True)
    return [process for process in found if not any(one in command_line(process) for one in STAYING)]


def command_line(process: psutil.Process) -> str:
    """Its words; "" if it is gone. A forked worker has but one, which holds them all."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline()).strip()
    return ""
