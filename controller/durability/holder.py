"""Which process holds a run directory, as the lock file beside it says.

Invariant: a process is taken for the controller only if it is the one that wrote the file: after a kill its
number may have gone to another process, which nobody may signal, nor wait for.
"""

import os
from pathlib import Path

STARTED = 19  # place of the start time behind the name in /proc/PID/stat, see `man proc`


def lock_of(run: Path) -> Path:
    """The file that the controller of this run directory keeps locked."""
    return run.parent / f".{run.name}.lock"


def mark() -> str:
    """What this process writes there: its number and, where the system tells it, when it was started."""
    pid = os.getpid()
    return f"{pid} {started_at(pid)}".rstrip()


def controller_of(run: Path) -> int | None:
    """The process that holds the run; None if it has ended, or this is a copy on another machine."""
    try:
        number, *started = lock_of(run.resolve()).read_text().split()
        pid = int(number)
        is_there = pid > 0 and _is_there(pid)  # to `kill`, 0 and less are groups of processes
    except (OSError, ValueError, OverflowError):
        return None
    return pid if is_there and (not started or started == [started_at(pid)]) else None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def started_at(pid: int) -> str:
    """When a process was started, in ticks since the machine was; "" where /proc does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[STARTED]
    except (OSError, IndexError):
        return ""
