"""The processes of one piece of users' code: starts, replaces and ends them.

Invariants: the event loop never runs the user's code and never waits for it; a process that ends is replaced,
and so is one that is killed while it starts; if a process dies MAX_IDLE_DEATHS times in a row without a
request as the cause, the worker fails; no process outlives the pool.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from protocol.errors import ConfigError, RunError
from protocol.importing import hides_python
from workers.children.process import KeptProcess

logger = logging.getLogger(__name__)

START_LIMIT_S = 300.0  # to import the user's module, which may pull in a large library
MAX_IDLE_DEATHS = 3  # in a row: the module ends its process whatever is requested

Child = TypeVar("Child", bound=KeptProcess)


class PooledCode(NamedTuple):
    """The users' code: how its processes are started, and its names in messages."""

    module: str  # whose `main` each process runs
    name: str  # import path or command
    kind: str  # "reward function"
    key: str  # configuration key that names the code
    idle: str  # missing activity between its deaths, as the end of a clause


class KeptPool(Generic[Child]):
    """Processes around the users' code, within `async with`."""

    def __init__(self, code: PooledCode, environment: Mapping[str, str]) -> None:
        """A pool without processes. `environment`: of each process."""
        self._pooled, self._environment = code, environment
        self._tasks = asyncio.TaskGroup()
        self._starting: set[asyncio.Task[Child]] = set()
        self._children: list[Child] = []
        self._idle_deaths = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all children, at once. Raises: as `start`, in a group, if one could not be replaced."""
        self._is_closed = True
        for child in list(self._children):
            child.end("The worker ends.")
        for task in self._starting:
            task.cancel()
        if not isinstance(error, asyncio.CancelledError):
            kind = error = trace = None  # no fault of a child: not to be told as one
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            for child in list(self._children):  # whatever has gone is not in it any more
                await child.gone.wait()

    # -- what the pools differ in ---------------------------------------------------------------------------

    def _make(self) -> Child:
        """A new process, not started yet."""
        raise NotImplementedError

    def _on_started(self, child: Child) -> None:
        """Note that a process is ready."""
        raise NotImplementedError

    def _is_replaced(self, child: Child) -> bool:
        """Whether a process is replaced when it has died."""
        return True

    def _was_idle(self, child: Child) -> bool:
        """Whether no request can have killed the process."""
        return True

    # -- their life -----------------------------------------------------------------------------------------

    async def _start_all(self, count: int) -> None:
        """Raises: ConfigError, RunError, in a group."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                tasks.create_task(self._start(self._make), name=f"{self._pooled.kind} process {number}")

    async def _start(self, make: Callable[[], Child]) -> Child:
        """A process that is ready, or if the pool was closed meanwhile, one that ends.

        Raises: ConfigError, RunError.
        """
        child = make()
        await child.start(self._pooled.module, self._pooled.name, self._environment)
        if not child.gone.is_set():
            self._children.append(child)
        if self._is_closed:
            child.end("The worker ends.")
        await asyncio.wait([child.ready], timeout=START_LIMIT_S)
        if not child.ready.done():
            child.end(
                f"Its process did not import its module within {START_LIMIT_S:g} s. Look at what the module "
                "does when it is imported, such as loading a model or waiting for a server, and have it done "
                "with the first call."
            )
            await child.gone.wait()
        try:
            child.ready.result()
        except ConfigError as error:
            raise ConfigError(f"`{self._pooled.key}` cannot be used. {error}") from None
        except RunError:
            if self._is_closed:
                return child
            if child.was_killed and self._idle_deaths < MAX_IDLE_DEATHS - 1:  # not by what it imports, maybe
                return await self._replace(child, make)
            hidden = hides_python(os.environ.get("PYTHONPATH", "").split(os.pathsep))
            told = f"The {self._pooled.kind} {self._pooled.name!r} did not start. {child.reason} {hidden}"
            raise RunError(told.rstrip()) from None
        self._on_started(child)
        return child

    def _on_gone(self, child: Child) -> None:
        if child in self._children:
            self._children.remove(child)
        if child.has_started and self._is_replaced(child) and not self._is_closed:  # else who starts it tells
            replacing = self._replace(child, self._make)
            task = self._tasks.create_task(replacing, name=f"{self._pooled.kind} process again")
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _replace(self, child: Child, make: Callable[[], Child]) -> Child:
        """Raises: ConfigError, RunError."""
        was_idle = self._was_idle(child)
        logger.log(logging.WARNING if was_idle else logging.INFO, "%s It is started again.", child.reason)
        self._idle_deaths += was_idle
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise RunError(
                f"The process of the {self._pooled.kind} {self._pooled.name!r} has ended {self._idle_deaths} "
                f"times in a row{self._pooled.idle}. {child.reason} Look for what its module starts."
            )
        return await self._start(make)
