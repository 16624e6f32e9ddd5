"""Listens for the episodes' clients, at a free port of this machine, while the worker runs.

Invariants: only this machine can reach it; signals are left to the worker; closing the door cuts its clients.
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from workers.agent.door.site import EpisodeLost

BACKLOG = 4096
"""Connections at once, as many as episodes may open."""
KEPT_S = 3600
"""Seconds that a connection stays open between two turns, for clients with slow environments."""


logging.getLogger("uvicorn.error").addFilter(lambda record: not _is_meant(record))


def _is_meant(record: logging.LogRecord) -> bool:
    """Whether a log record is about clients that were cut off on purpose."""
    if record.exc_info is None:
        return record.getMessage().startswith("Cancel ")  # at the end of the worker
    return isinstance(record.exc_info[1], EpisodeLost)


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the worker."""
        yield


class DoorListener:
    """A server within `async with`."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app, log_config=None, log_level=logging.ERROR, access_log=False, lifespan="off",
            server_header=False, date_header=False, timeout_graceful_shutdown=0,
            timeout_keep_alive=KEPT_S, backlog=BACKLOG,
        )  # fmt: skip
        self._server = _Server(config)
        # named as TCP, so that asyncio sends at once: else the second part of an answer waits 40 ms
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._task: asyncio.Task[None]

    @property
    def url(self) -> str:
        """The `base_url` for clients."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(BACKLOG)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="door")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._task
        self._socket.close()
