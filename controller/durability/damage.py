"""How damage to run.db is detected, and what the user is told about it.

Invariant: a record counts only if its checksum matches. The checksum covers the key of a record and its
content, so that neither a flipped bit nor a record that was moved to another key passes for what was written.
Measured: 0.5 us for 100 bytes, 8 us for 16 KiB; of what an event and its payload cost to write, 4 to 9 %.
"""

import os
import sqlite3
import struct
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from protocol.errors import RunError
from protocol.files import exists

PLACE = struct.Struct("<qd")
NUMBER = struct.Struct("<q")
SPOT = struct.Struct("<4q")
CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
PRIMARY = 0xFF  # mask: the primary error code in an extended one of SQLite


def event_checksum(number: int, now: float, event: bytes, is_joined: int = 0) -> int:
    """The checksum of one record of the journal."""
    return crc32(event, crc32(PLACE.pack(number, now), is_joined))


def payload_checksum(place: tuple[int, str, int, int, int], data: bytes) -> int:
    """The checksum of the payload at the key (group, kind, member, attempt, start)."""
    group, kind, member, attempt, start = place
    return crc32(data, crc32(SPOT.pack(group, member, attempt, start), crc32(kind.encode())))


def chunk_checksum(number: int, *parts: bytes) -> int:
    """The checksum of some columns of one record of progress."""
    found = crc32(NUMBER.pack(number))
    for part in parts:
        found = crc32(part, found)
    return found


def line_checksum(step: int, line: str) -> int:
    """The checksum of one line of metrics.jsonl."""
    return crc32(line.encode(errors="surrogatepass"), step & 0xFFFFFFFF)


def snapshot_digest(number: int, now: float, release: str, image: bytes) -> bytes:
    """The digest of the image of a core, and of the release that made it."""
    found = blake2b(PLACE.pack(number, now) + release.encode(), digest_size=16)
    found.update(image)
    return found.digest()


def is_whole(expected: object, checksum: Callable[..., object], *fields: object) -> bool:
    """Whether the checksum of a record matches its fields, whose types damage may have changed."""
    try:
        return checksum(*fields) == expected
    except (struct.error, TypeError, AttributeError, ValueError):
        return False


FAILURES = sqlite3.Error, UnicodeDecodeError
"""What SQLite raises; the latter where its own words quote a damaged name."""


def damaged(path: str, what: str) -> RunError:
    """What to tell the user when something in run.db is not what was written. `what` is a main clause."""
    return RunError(f"{path} is damaged: {what}. Look at the disk, and {way_on(Path(path))}")


def broken(path: str, error: sqlite3.Error | UnicodeDecodeError | TypeError | OSError) -> RunError:
    """What to tell the user when SQLite fails; FAILURES lists the errors that callers catch for it.

    A TypeError is of a caller that only looks at values of the file: one has another type than was written.
    """
    if isinstance(error, UnicodeDecodeError):
        return damaged(path, f"SQLite says {error.object.decode(errors='replace')!r}")
    if isinstance(error, TypeError):
        return damaged(path, f"a value has another type than was written ({error})")
    code = getattr(error, "sqlite_errorcode", None)
    if (code is not None and code & PRIMARY in CORRUPT) or "decode to UTF-8" in str(error):
        return damaged(path, f"SQLite says {str(error)!r}")
    if exists(path) and not os.access(path, os.R_OK):
        return RunError(
            f"{path} cannot be read by you: a run makes it for its owner alone. Expected a run of yours, or "
            f"one that was given to you: ask the owner for a copy of {path} that you may read."
        )
    if code is not None and code & PRIMARY == sqlite3.SQLITE_CANTOPEN and _is_shut_in(Path(path)):
        name, folder = Path(path).name, Path(path).resolve().parent
        return RunError(
            f"{path} cannot be read where it is: its newest part is in {name}-wal, for which SQLite has to "
            f"write beside it, and {folder} may not be written to. Copy {name} and {name}-wal into a folder "
            "that you may write to, and name that one."
        )
    return RunError(
        f"The run's database {path} failed: {error}. Expected a writable local disk with free space (network "
        "file systems without locks do not work). Free some space or set run.dir elsewhere, and start again."
    )


def _is_shut_in(path: Path) -> bool:
    """Whether this run.db is of a run that did not end and lies in a folder where nothing can be written."""
    has_log = exists(path.with_name(f"{path.name}-wal"))
    return has_log and not os.access(path.resolve().parent, os.W_OK)


def way_on(path: Path) -> str:
    """What a person can do without this run.db; ends a sentence."""
    if newest := newest_checkpoint(path.parent):
        return (
            "restore the file from a backup, or begin a new run from the newest checkpoint: "
            f"run.resume={newest} run.name=ANOTHER."
        )
    return "restore the file from a backup, or start over: run.resume=never."


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run directory; None if there is none."""
    versions = saved_versions(run)
    return run / "checkpoints" / f"step_{max(versions)}" if versions else None


def saved_versions(run: Path) -> list[int]:
    """Versions of the complete checkpoints of a run directory, in no order."""
    return [
        int(number)
        for path in run.glob("checkpoints/step_*/.complete")
        if (number := path.parent.name.removeprefix("step_")).isdecimal()
    ]
