"""The listening socket of a view, at a free port of this machine, and the file with its token.

Invariants: only this machine can reach the socket: another address is refused, with a safe way; the token is
in a file that only its owner can read, if the run directory is writable, and never in the file of another
view; of the project only errors and file modes are imported, as a run uses this module in its own process.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protocol.errors import ConfigError
from protocol.files import for_owner_only

FIRST_PORT = 8470
TRIES = 50
TOKEN_FILE = "view.token"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def listen(host: str, port: int | None, *, key: str = "--port") -> socket.socket:
    """A listening socket: at this port, or at the first free one from FIRST_PORT on.

    `key`: the option that sets the port, for messages.

    Raises: ConfigError if the host can be reached from elsewhere, or the port is taken.
    """
    if host not in LOOPBACK:
        raise ConfigError(
            f"{host} can be reached from other machines, and what the view shows travels as it is. Leave "
            "--host out, and on your own machine: ssh -L 8470:127.0.0.1:8470 USER@THIS_MACHINE."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = range(FIRST_PORT, FIRST_PORT + TRIES) if port is None else [port]
    for one in wanted:
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, one))
            found.listen()  # a socket that is only bound keeps nobody off its port
        except OSError as error:
            found.close()
            if port is not None:
                raise ConfigError(
                    f"Port {port} of {host} cannot be had: {error.strerror}. Leave {key} out for the "
                    "next free one, or give another."
                ) from error
        else:
            return found
    raise ConfigError(f"No port from {FIRST_PORT} to {FIRST_PORT + TRIES - 1} is free; give one with {key}.")


@contextmanager
def left_token(run: Path, token: str, *, is_own: bool) -> Iterator[Path | None]:
    """A context with a file that holds the token, for users who may read the run.

    It is view.token; beside another view that has it, view.token.PID. None if neither can be written.
    `is_own`: for the run's own view, which gets view.token whoever has it.
    """
    file = run / TOKEN_FILE
    if is_own:
        with suppress(OSError):
            file.unlink()
    descriptor = _taken(file, token)
    if descriptor is None and not is_own:
        file = file.with_name(f"{TOKEN_FILE}.{os.getpid()}")
        descriptor = _taken(file, token)
    if descriptor is None:
        yield None
        return
    try:
        yield file
    finally:
        if _is_at(file, descriptor):  # else the run has begun meanwhile, and this is its own
            with suppress(OSError):
                file.unlink()
        os.close(descriptor)


def _taken(file: Path, token: str) -> int | None:
    """The descriptor of the locked file with the token; None if another view holds it, or it is not writable.

    The lock ends with its process, so the file of a killed view is free. In a run directory of somebody else
    a link, a pipe or a file of his may have the name: none of them is written to.
    """
    try:
        descriptor = for_owner_only(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # a copy on a disk that is only read: the link that is printed has it
        return None
    try:
        is_mine = os.fstat(descriptor).st_uid == os.geteuid()
        if is_mine and _is_free(descriptor) and _is_at(file, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, token.encode())
            return descriptor
    except OSError:  # a full disk
        with suppress(OSError):
            file.unlink()  # half of a token is none
    os.close(descriptor)
    return None


def _is_free(descriptor: int) -> bool:
    """Lock a file; returns whether no other view holds it. Without locks of the disk: whether it is empty."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return not os.fstat(descriptor).st_size
    return True


def _is_at(file: Path, descriptor: int) -> bool:
    """Whether this open file is the one of that name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except OSError:
        return False
