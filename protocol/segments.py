"""Where on a host the policy versions of a run lie, and who may remove them.

Invariants: the folder of a run on a host has one name, which everybody derives alike; whoever uses a folder
holds a shared lock in it, which the kernel takes away with the process; only folders that nobody holds are
swept, so nothing of a run outlives the next start on that host, whatever was killed.
"""

import fcntl
import hashlib
import os
import shutil
import socket
from pathlib import Path
from typing import IO

SHARED_MEMORY = Path("/dev/shm")
MEMORY = Path("/proc/meminfo")
PREFIX = "staleflow"


def this_host() -> str:
    """The host whose storage this process shares; STALEFLOW_HOST names it where the host's own name misleads,
    as with containers that share a name but no memory."""
    return os.environ.get("STALEFLOW_HOST") or socket.gethostname()


def segment_directory(run_dir: str | Path, *, host: str, base: str = "auto") -> Path:
    """The run's folder on a host: in shared memory (`auto`), or in `base`."""
    words = f"{Path(run_dir).absolute()}\0{host}"
    name = f"{PREFIX}-{os.getuid()}-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
    return (SHARED_MEMORY if base == "auto" else Path(base).absolute()) / name


def has_room(size_bytes: int) -> bool:
    """Whether shared memory takes so many bytes, without pushing the host into swap."""
    try:
        room = os.statvfs(SHARED_MEMORY)
        lines = dict(line.split(":", 1) for line in MEMORY.read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return False
    return os.access(SHARED_MEMORY, os.W_OK) and size_bytes <= min(room.f_bavail * room.f_frsize, available)


def hold(directory: Path) -> IO[bytes]:
    """Make the folder, readable by this user only, and hold it until the returned file is closed."""
    while True:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            lock = open(directory / "lock", "ab")  # noqa: SIM115 - the caller's to close
        except FileNotFoundError:
            continue  # swept just now
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock.fileno()).st_nlink:
            return lock
        lock.close()


def sweep(base: str = "auto", *, keep: Path | None = None) -> None:
    """Remove every folder of this user's that no living process holds, but `keep`."""
    root = SHARED_MEMORY if base == "auto" else Path(base)
    for directory in root.glob(f"{PREFIX}-{os.getuid()}-*"):
        if directory != keep:
            remove(directory)


def remove(directory: Path, *, even_if_held: bool = False) -> None:
    """Remove a run's folder unless somebody holds it; who has mapped a version may go on reading it."""
    try:
        with open(directory / "lock", "ab") as lock:
            if not even_if_held:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    except (BlockingIOError, FileNotFoundError):
        return
