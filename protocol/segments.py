"""The folder of a run's policy versions on a host: where it lies, and when it may be removed.

Invariants: the folder of a run on a host has one name, which all processes derive alike; a process that uses
a folder holds a shared lock in it, which the kernel releases with the process; only folders without a holder
are swept, so nothing of a run outlives the next start on that host, whatever was killed. The name can be
guessed, and the folder above belongs to everybody: a folder is used only if this user alone can write there,
and no file in it is opened through a link.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import IO

from protocol.errors import ConfigError
from protocol.files import is_dir

SHARED_MEMORY = Path("/dev/shm")
ON_DISK = Path("/tmp")  # where that has no room, or a system has none: one folder, whatever TMPDIR says
MEMORY = Path("/proc/meminfo")
PREFIX = "staleflow"


def this_host() -> str:
    """The host whose storage this process shares.

    STALEFLOW_HOST names it where the host's own name misleads, as with containers that share a name but no
    memory.
    """
    return os.environ.get("STALEFLOW_HOST") or socket.gethostname()


def segment_directory(run_dir: str | Path, *, host: str, base: str = "auto") -> Path:
    """The run's folder on a host: in shared memory (`auto`; in /tmp on a system without it), or in `base`."""
    words = f"{Path(run_dir).absolute()}\0{host}"
    name = f"{PREFIX}-{os.getuid()}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    return (_auto() if base == "auto" else Path(base).absolute()) / name


def _auto() -> Path:
    return SHARED_MEMORY if is_dir(SHARED_MEMORY) else ON_DISK


def has_room(size_bytes: int) -> bool:
    """Whether shared memory has room for so many bytes, without pushing the host into swap."""
    try:
        room = os.statvfs(SHARED_MEMORY)
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return False
    return os.access(SHARED_MEMORY, os.W_OK) and size_bytes <= min(room.f_bavail * room.f_frsize, available)


def hold(directory: Path) -> IO[bytes]:
    """Make the folder, for this user only, and hold it until the returned file is closed.

    Raises: ConfigError if another user has made it, or could write there; OSError.
    """
    while True:
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if problem := _trespass(directory):
                raise ConfigError(f"{problem} Nothing was read or written there.")
            lock = _open_lock(directory)
        except FileNotFoundError:
            continue  # another process has just swept it
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock.fileno()).st_nlink:
            return lock
        lock.close()


def _trespass(directory: Path) -> str | None:
    """Why another user could write into the folder, or has made it; None if nobody but this user can.

    Raises: FileNotFoundError.
    """
    above, found = directory.parent.stat(), directory.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        return (
            f"Every user of this machine may rename what lies in {directory.parent} (mode "
            f"{stat.S_IMODE(above.st_mode):o}); expected a folder that only you may write to, or one with "
            "the sticky bit. Set `weights.directory` to one."
        )
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "link" if directory.is_symlink() else "file"
        return (
            f"{directory}, which is for policy versions, is a {kind} of the user with id {found.st_uid}; "
            f"expected a folder of yours (id {os.geteuid()}), or nothing. Somebody else has put it there: "
            "have it removed, or set `weights.directory` to a folder of yours."
        )
    if mode & 0o077:
        return (
            f"{directory}, which is for policy versions, has mode {mode:o}; expected 700, so that nobody "
            f"else writes there. If what lies in it is yours: chmod 700 {directory}; else remove it."
        )
    return None


def _open_lock(directory: Path) -> IO[bytes]:
    """Raises: FileNotFoundError if there is no folder; OSError if the lock is a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return open(os.open(directory / "lock", flags, 0o600), "ab")


def sweep(base: str = "auto", *, keep: Path | None = None) -> None:
    """Remove every folder of this user's that no living process holds, but `keep`.

    In shared memory and in /tmp, too, if `base` is another: a run that did not fit in there may go on
    elsewhere.
    """
    for root in {_auto(), ON_DISK, _auto() if base == "auto" else Path(base)}:
        for directory in root.glob(f"{PREFIX}-{os.getuid()}-*"):
            if directory != keep:
                remove(directory)


def remove(directory: Path, *, even_if_held: bool = False) -> None:
    """Remove a run's folder unless somebody holds it, or it is not this user's alone.

    A process that has mapped a version may go on reading it.
    """
    try:
        if _trespass(directory):
            return
        with _open_lock(directory) as lock:
            if not even_if_held:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    except (BlockingIOError, FileNotFoundError, NotADirectoryError):
        return
