"""Serves browsers on a socket until a signal ends it, or no request has come for long.

Invariants: a server that ends closes its socket; an idle connection is closed after KEPT_S.
Measured: Python's garbage collector took a quarter of the processor's time of a view that follows a
quickstart, nearly all of it by looking at the whole core again and again, which leaves next to no cycles.
"""

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from controller.view.door.viewers import MOST

MOST_AT_ONCE = 6 * MOST + 16  # connections: a browser opens six while it loads a page; and those of programs
YOUNG = 10_000  # objects more than there were before the collector looks at the youngest; Python has 700
KEPT_S = 20  # for which a connection is kept that has not asked for anything, or not to its end


async def serve(
    app: ASGIApp, bound: socket.socket, *, on_ready: Callable[[], None], idle_s: float | None = None
) -> None:
    """Answer until the process is asked to end, or no request was open for `idle_s`."""
    watched = Watched(app)
    config = uvicorn.Config(
        watched, http=Prompt, log_level="warning", access_log=False, limit_concurrency=MOST_AT_ONCE,
        lifespan="off", timeout_keep_alive=KEPT_S, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    if idle_s is not None:
        watched.when_idle(idle_s, lambda: setattr(server, "should_exit", True))
    on_ready()
    try:
        with rarer_collections():
            await server.serve(sockets=[bound])
    finally:
        bound.close()


@contextmanager
def rarer_collections() -> Iterator[None]:
    """A context with rarer collections; unused cores, large cycles of objects, are still collected."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Prompt(H11Protocol):
    """A connection that is closed after KEPT_S without a request: uvicorn waits for the first for ever."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the time limit of a new connection."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request; parts do not extend the time limit."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit."""
        super().connection_lost(exc)
        self._forget()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._patience is None:
            self._patience = self.loop.call_later(KEPT_S, self.timeout_keep_alive_handler)

    def _forget(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Watched:
    """An application that counts open requests, to know for how long it is idle."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner
        self._open = 0  # requests that are not answered to their end
        self._idle_s: float | None = None
        self._on_idle: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def when_idle(self, after_s: float, act: Callable[[], None]) -> None:
        """Call `act` once no request has been open for `after_s`, counted from now."""
        self._idle_s, self._on_idle = after_s, act
        self._wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._inner(scope, receive, send)
        finally:
            self._open -= 1
            self._wait()

    def _wait(self) -> None:
        if self._idle_s is not None and not self._open:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._on_idle)
