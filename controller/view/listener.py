"""Listens for browsers: a free port of this machine, and the server on it until it is told to end.

Invariants: only this machine can reach it: another address is refused, with the way that is safe; the token
is in a file of its owner alone, where the run directory can be written to; a server that ends closes its
socket.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from protocol.errors import ConfigError
from protocol.private_files import for_owner_only

FIRST_PORT = 8470
TRIES = 50
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MOST_AT_ONCE = 64  # connections
IDLE_S = 20


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: at this port, or at the first free one from FIRST_PORT on.

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
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, one))
            found.listen()  # a socket that is only bound keeps nobody off its port
        except OSError as error:
            found.close()
            if port is not None:
                raise ConfigError(
                    f"Port {port} of {host} cannot be had: {error.strerror}. Leave --port out for the next "
                    "free one, or give another."
                ) from error
        else:
            return found
    raise ConfigError(f"No port from {FIRST_PORT} to {FIRST_PORT + TRIES - 1} is free; give one with --port.")


def leave_token(run: Path, token: str) -> bool:
    """Write the token where whoever may read the run finds it; whether that was possible."""
    try:
        descriptor = for_owner_only(str(run / "view.token"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    except OSError:  # a copy on a disk that is only read: the link that is printed has it
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    return True


async def serve(app: ASGIApp, bound: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Answer until the process is asked to end."""
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, limit_concurrency=MOST_AT_ONCE, lifespan="off",
        timeout_keep_alive=IDLE_S, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    on_ready()
    try:
        await uvicorn.Server(config).serve(sockets=[bound])
    finally:
        bound.close()
