"""Lets one process at a time install into an environment.

Invariants: standard library only; a waiting process says so every few seconds; a killed process blocks no
other, as the kernel releases its lock.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_S = 0.1
SILENCE_S = 5.0  # until a line says that it still waits


@contextlib.contextmanager
def locked(environment: Path, say: Callable[[str], None], limit_s: float | None) -> Iterator[None]:
    """A context for one process at a time, by a lock file beside the environment, which is not deleted.

    If the file cannot be made or locked (a folder without write permission, a disk without locks), it says so
    and goes on. Raises: TimeoutError if another process holds the lock for longer than `limit_s`.
    """
    file = environment.with_name(f"{environment.name}.lock")
    with contextlib.ExitStack() as held:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            held.callback(os.close, descriptor)
            is_mine = _wait(descriptor, environment, say, limit_s)
        except OSError as error:
            say(f"{file} cannot be locked ({error}): start no other launch.py until this one has installed")
        else:
            if not is_mine:
                raise TimeoutError(f"another launch.py{_holder(descriptor)} was at it for {limit_s:.0f} s")
            _note(descriptor, str(os.getpid()))
            held.callback(_note, descriptor, "")
        yield


def _wait(descriptor: int, environment: Path, say: Callable[[str], None], limit_s: float | None) -> bool:
    """Wait for the lock; returns whether it was taken within `limit_s` seconds."""
    start, said = time.monotonic(), -SILENCE_S
    while not _is_got(descriptor):
        for_s = time.monotonic() - start
        if for_s - said >= SILENCE_S:
            said = for_s
            say(f"another launch.py{_holder(descriptor)} installs into {environment}; waiting for its end")
        if limit_s is not None and for_s >= limit_s:
            return False
        time.sleep(POLL_S)
    return True


def _is_got(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> str:
    """The pid of the lock's holder, for a message; "" if it is not known."""
    pid = os.pread(descriptor, 20, 0).decode(errors="replace")
    return f" (pid {pid})" if pid else ""


def _note(descriptor: int, pid: str) -> None:
    with contextlib.suppress(OSError):  # a full disk; then waiting processes print no pid
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, pid.encode(), 0)
