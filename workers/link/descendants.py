"""Ends all processes that a process has started, directly or not, in whatever session they are.

Invariant: on Linux a process that adopts orphans (`adopt_orphans`) stays the ancestor of all that it has
started, so walking down from it misses only processes that another service was asked to start.
"""

import ctypes
import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of every descendant whose own parent ends. Linux only."""
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(ancestor: int) -> list[int]:
    """Process ids of all descendants, parents before their children; [] without /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):  # it has ended meanwhile
            behind_name = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            children[int(behind_name[1])].append(int(folder.name))
    found = list(children[ancestor])
    for process in found:
        found += children[process]
    return found


def reap(child: int) -> int | None:
    """Reap every child that has ended; returns the wait status of `child` if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                status = ended[1]
    return status


def kill_and_reap(child: int) -> int | None:
    """End `child` and all other descendants of this process.

    Returns the wait status of `child`, None if another has reaped it. A process whose parent is killed
    becomes a child of this one, so each round finds what was started since the last. Processes that this user
    may not signal are waited for.
    """
    status = None
    while True:
        if sys.platform != "linux":  # no /proc: what has left its session is missed
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)
        for process in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            ended, its_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended == child:
            status = its_status
