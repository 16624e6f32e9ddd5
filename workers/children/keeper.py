"""Keeps a process of users' code, and ends all processes that it has started.

`python -m workers.children.keeper MODULE NAME MEMORY_MB` forks: the child runs the `main` of the module, the
parent waits. NAME is for people. Invariants: when the worker closes the pipe or is gone, or the child ends or
takes too much memory, all processes that the child has started are ended, also those in another session or
without their parent; this process ends with its child's status, or with OUT_OF_MEMORY.
"""

import importlib
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

from protocol.importing import put_users_first
from workers.children.packets import OUT_OF_MEMORY
from workers.link.descendants import adopt_orphans, kill_and_reap, reap
from workers.link.parent import die_with_parent
from workers.link.process_memory import resident_bytes_of
from workers.sandbox.usage import resident_mb_below

LOOK_MS = 100
"""Milliseconds between two checks of the child's memory: cheap, and a few hundred MB are filled meanwhile."""
LOOKS_AT_ALL = 10
"""One in so many checks covers all descendants, and so reads the status of every process of the machine."""


def main() -> None:
    """Runs the keeper, which never returns; in the child, the module's `main`."""
    adopt_orphans()
    keeper = os.getpid()
    child = os.fork()  # before anything is imported that could start a thread
    if child:
        _keep(child, int(sys.argv[3]))
    os.setsid()  # code that signals its process group is not to hit its keeper
    die_with_parent(keeper)
    put_users_first()
    importlib.import_module(sys.argv[1]).main()


def _keep(child: int, memory_mb: int) -> None:
    os.close(1)  # so that the worker sees when the child closes it
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which then ends this process
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _noted)
    poll = select.poll()
    poll.register(0, 0)  # only reports that the worker has closed it; its data are for the child
    poll.register(reader, select.POLLIN)
    status, looks, due_s = None, 0, 0.0
    while status is None:
        ready = [descriptor for descriptor, _ in poll.poll(LOOK_MS)]
        if 0 in ready:
            break
        if reader in ready:
            signals = os.read(reader, 4096)
            if signal.SIGTERM in signals or signal.SIGHUP in signals:
                break
            status = reap(child)
        if status is None and time.monotonic() >= due_s:  # also while orphans end all the time
            looks, due_s = looks + 1, time.monotonic() + LOOK_MS / 1000
            if _takes_more(child, memory_mb, looks % LOOKS_AT_ALL == 0):
                kill_and_reap(child)
                os._exit(OUT_OF_MEMORY)
    rest = kill_and_reap(child)
    _end_as(status if status is not None else rest)


def _takes_more(child: int, memory_mb: int, looks_at_all: bool) -> bool:
    """Whether the child takes more memory than allowed, alone or with all that it has started."""
    if resident_bytes_of(child) > memory_mb << 20:
        return True
    return looks_at_all and resident_mb_below(os.getpid()) > memory_mb


def _noted(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up descriptor has the signal's number."""


def _end_as(status: int | None) -> None:
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
