"""Where the view listens: a free port of this machine, and the token beside the run.

Invariants: only this machine can reach it: another address is refused, with the way that is safe; the token
is in a file of its owner alone, where the run directory can be written to; nothing but the standard library
is imported, as a run asks for it in its own process.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

from protocol.errors import ConfigError
from protocol.private_files import for_owner_only

FIRST_PORT = 8470
TRIES = 50
TOKEN_FILE = "view.token"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def listen(host: str, port: int | None, *, key: str = "--port") -> socket.socket:
    """A listening socket: at this port, or at the first free one from FIRST_PORT on.

    `key`: what sets the port, for people.

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


def free_token_file(run: Path) -> Path:
    """Where a view beside others of the run leaves its token: theirs are not to be overwritten."""
    file = run / TOKEN_FILE
    return file.with_name(f"{TOKEN_FILE}.{os.getpid()}") if file.exists() else file


def leave_token(file: Path, token: str) -> bool:
    """Write the token where whoever may read the run finds it; whether that was possible."""
    try:
        with os.fdopen(for_owner_only(str(file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as opened:
            opened.write(token)
    except OSError:  # a copy on a disk that is only read, or a full one: the link that is printed has it
        with suppress(OSError):
            file.unlink()  # half of a token is none
        return False
    return True
