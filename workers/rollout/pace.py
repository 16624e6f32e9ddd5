"""Decides when a rollout worker takes a step of its engine.

Invariants: an engine that is stepped takes one step per turn of the event loop, which it blocks meanwhile; an
engine that steps by itself only has its results collected, so the loop never waits for a step. If such an
engine has work and stays silent for the lease, the worker ends; a hung step of the other kind stops the
beats, with the same effect.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from protocol.errors import RunError
from workers.engines.interface import Engine, RunsByItself

LOOKS = 4  # waits per lease, so that suspending the machine costs the engine one of them at most


class EnginePace:
    """Takes the steps of one engine."""

    def __init__(self, engine: Engine, *, step: Callable[[], None], wake: Callable[[], None]) -> None:
        """`step` takes one step; `wake` wakes the serving loop when a result has come."""
        self._engine, self._step, self._wake = engine, step, wake
        self._running = engine if isinstance(engine, RunsByItself) else None
        self._stirred = asyncio.Event()
        self.lease_s = 0.0
        """Longest silence of an engine that has work; 0 for no limit."""
        self._silent_s = 0.0
        if self._running is not None:
            loop = asyncio.get_running_loop()

            def call() -> None:
                with suppress(RuntimeError):  # the loop is closed: this process ends
                    loop.call_soon_threadsafe(self._stir)

            self._running.on_step(call)

    def is_due(self) -> bool:
        """Whether there is a step or result to take."""
        return self._engine.is_busy() if self._running is None else self._running.has_stepped()

    async def turn(self) -> None:
        """Take a step, then let the event loop run beats and messages."""
        self._silent_s = 0.0
        self._step()
        await asyncio.sleep(0)

    async def rest(self, arrived: asyncio.Event) -> None:
        """Wait for this event, which `wake` sets, or a while. Raises: RunError if the engine hangs."""
        if self._running is None or not self._engine.is_busy() or not self.lease_s:
            self._silent_s = 0.0
            await arrived.wait()
            return
        loop, part_s = asyncio.get_running_loop(), self.lease_s / LOOKS
        began = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(part_s):
                await arrived.wait()
        self._silent_s += min(loop.time() - began, part_s)
        if self._silent_s >= self.lease_s:
            raise RunError(
                f"The engine has responses to go on with and has sampled nothing for {self.lease_s:g} s: its "
                "own process hangs. Expected a step within controller.lease_s; raise that if one may take so "
                "long. The worker ends, and its responses go on elsewhere."
            )

    async def until(
        self, task: "asyncio.Task[Any]", *, over: Callable[[], bool] = lambda: False,
        arrived: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        """Take steps until this task is done, or it is `over`, which is asked whenever something `arrived`.

        Raises: RunError if the engine hangs.
        """
        arrived = arrived or self._stirred
        task.add_done_callback(lambda _: arrived.set())
        while not (task.done() or over()):
            await self._turn_or_rest(arrived)

    async def settle(self) -> None:
        """Take everything that was sampled, and pause sampling until `go_on`. Raises: RunError."""
        if self._running is not None:
            self._running.pause()
            while not self._running.is_settled():
                await self._turn_or_rest(self._stirred)

    def settle_now(self) -> None:
        """Like `settle`, but blocks the event loop. Raises: RunError."""
        if self._running is not None:
            self._running.pause()
            while not self._running.is_settled():
                self._step()

    def go_on(self) -> None:
        """Resume an engine that was settled."""
        if self._running is not None:
            self._running.resume()

    async def _turn_or_rest(self, arrived: asyncio.Event) -> None:
        if self.is_due():
            await self.turn()
        else:
            arrived.clear()
            await self.rest(arrived)

    def _stir(self) -> None:
        self._stirred.set()
        self._wake()
