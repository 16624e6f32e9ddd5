"""Ports that nobody else gets before a test has used them, nor between two uses."""

import atexit
import socket

_held: list[socket.socket] = []


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this machine that is this process's alone, to its end.

    It is bound here and never listened at: who names it and sets SO_REUSEADDR, as ZeroMQ, torch and
    asyncio do, may listen at it, again and again; who asks the system for any port gets another.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    _held.append(held)
    return held.getsockname()[1]


@atexit.register
def _let_go() -> None:
    for held in _held:
        held.close()
