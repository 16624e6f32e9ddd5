"""Which process holds a run directory, according to the lock file beside it.

Invariant: a process is taken for the controller only if it wrote the file: after a kill, the system may have
given the same pid to another process, which must be neither signalled nor waited for.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from protocol.errors import ConfigError
from protocol.files import stranger_at
from protocol.plain_text import is_plain_line

LOOK_S = 0.05  # a hundred times what `is_held` takes
STARTED = 19  # place of the start time after the name in /proc/PID/stat, see `man proc`


def lock_of(run: Path) -> Path:
    """The file that the controller of this run directory keeps locked."""
    return run.parent / f".{run.name}.lock"


def open_lock(run: Path) -> IO[str]:
    """Open the lock file, and make it if it is missing; a link is not followed.

    Raises: ConfigError if another user put it there; OSError.
    """
    refuse_stranger(lock_of(run))
    return open(lock_of(run), "a+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))


def refuse_stranger(place: Path) -> None:
    """Raises: ConfigError if another user has put this where a run is to be, in a folder for all."""
    if (owner := stranger_at(place)) is not None:
        raise ConfigError(
            f"{place} is of the user with id {owner}, in a folder where everybody may write; expected it to "
            "be yours, or nothing, as its owner could change what the run does. Set run.dir to a folder of "
            "yours, or choose another run.name."
        )


def own_place(folder: Path) -> Path:
    """Where a path leads to, so that all paths to a run directory lead to one lock.

    Raises: ConfigError if another user has put it there, or workers could not tell of files in it.
    """
    found = folder.resolve()
    for place in (folder, found):
        refuse_stranger(place)
    if not is_plain_line(str(found)):
        raise ConfigError(
            f"The run directory is {str(found)!r}; expected a path in UTF-8 without control characters, of "
            "which workers can tell. Set run.dir or run.name to another."
        )
    return found


def mark() -> str:
    """What this process writes to the lock file: its pid and, where the system tells it, its start time."""
    pid = os.getpid()
    return f"{pid} {started_at(pid)}".rstrip()


def controller_of(run: Path) -> int | None:
    """The process that holds the run; None if it has ended, or this is a copy on another machine."""
    try:
        number, *started = lock_of(run.resolve()).read_text().split()
        pid = int(number)
        is_there = pid > 0 and _is_there(pid)  # `kill` takes 0 and negative numbers for groups of processes
    except (OSError, ValueError, OverflowError):
        return None
    return pid if is_there and (not started or started == [started_at(pid)]) else None


def take(lock: IO[str]) -> bool:
    """Whether this process has the lock now, until the file is closed. Raises: OSError."""
    for pause_s in (LOOK_S, None):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause_s is not None:
                time.sleep(pause_s)  # somebody may only look whether it is held
        else:
            return True
    return False


def is_held(run: Path) -> bool:
    """Whether a controller of this machine holds the run; in another container, its pid would not tell."""
    if controller_of(run) is not None:
        return True
    try:
        lock = os.open(lock_of(run.resolve()), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # there is none, as beside a copy of a run
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(lock)
    return False


def in_use(run: Path, owner: int | str) -> str:
    """What to do about a run that another controller holds."""
    told = (
        f"{run} is in use by the controller with pid {owner}. Wait for it, stop it, or choose another "
        "run.name."
    )
    if (size := os.environ.get("WORLD_SIZE", "1")) == "1":
        return told
    return (
        f"{told} WORLD_SIZE is {size}: if torchrun has started this program {size} times, start it once, by "
        "`python`; trainer.ranks makes the ranks."
    )


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # a process of another user
    return True


def started_at(pid: int) -> str:
    """When a process was started, in ticks since the machine booted; "" where /proc does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[STARTED]
    except (OSError, IndexError):
        return ""
