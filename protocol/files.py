"""How files of a run are found and opened, which others may have made, and how they outlive a power failure.

`exists`, `is_file` and `is_dir` stand for the methods of Path, which since Python 3.14 take every error of a
disk for "it is not there": a run whose journal lies on a disk that fails for a moment would begin anew.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

OTHERS = 0o077
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something is at a path. Raises: OSError if that cannot be seen."""
    return _mode(path) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is at a path. Raises: OSError if that cannot be seen."""
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is at a path. Raises: OSError if that cannot be seen."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno not in ABSENT:
            raise
    except ValueError:  # a character that no path has
        pass
    return None


def readable_as_its_folder(file: Path) -> None:
    """Let those read and write a file who may its folder: safetensors makes its files the owner's alone."""
    with suppress(PermissionError):  # a disk without modes
        file.chmod(stat.S_IMODE(file.stat().st_mode) | stat.S_IMODE(file.parent.stat().st_mode) & 0o666)


def stranger_at(path: Path) -> int | None:
    """The id of another user who has put what is at a path into a folder such as /tmp.

    That is one in which everybody may make what is not there, and nobody may rename what is another's. None
    if nothing can be seen there, if it is this user's or root's, or if the folder is no such one.
    """
    try:
        owner, above = path.lstat().st_uid, path.parent.stat().st_mode
    except OSError:
        return None
    is_for_all = above & stat.S_IWOTH and above & stat.S_ISVTX
    return owner if is_for_all and owner not in (0, os.geteuid()) else None


def plain_only(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for `open`: reads no pipe or device, which may say nothing for ever, or never end.

    Raises: OSError.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` itself refuses a folder
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe or a device, and no file", str(path))


def for_owner_only(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for `open`: made with mode 0600, and brought to it if an earlier release made it wider."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_mode & OTHERS:
        with suppress(PermissionError):  # of another user, who may change it and shares it with this one
            os.fchmod(descriptor, 0o600)
    return descriptor


def sync(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
