"""The processes of an agent worker, and which episode runs in which.

Invariants: the event loop never runs the user's code and never waits for it; a process that has ended is
replaced; an episode that was in a process when it died runs alone in one the next time, so that the one that
kills processes is found; none is left behind the pool.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError, RunError
from workers.agent.child import AgentChild, EpisodeListener
from workers.agent.kinds.openenv import is_address
from workers.agent.kinds.openenv_wire import check_sessions
from workers.agent.pipe import SETUP
from workers.children.packets import packet
from workers.children.process import Code, environment_of, half_mb

logger = logging.getLogger(__name__)

START_LIMIT_S = 300.0  # to import the user's module, which may pull in a large library
MAX_IDLE_DEATHS = 3  # in a row: the module ends its process, whatever it is asked
BLOCKED_SHARE = 0.5
"""Of `agent.turn_timeout_s`: the others of a process are not to be taken for silent because of one."""


class AgentPool:
    """`agent.processes` children around the agent, within `async with`."""

    def __init__(
        self, settings: AgentSettings, listener: EpisodeListener, import_paths: tuple[str, ...] = (),
        *, request_kwargs: Mapping[str, Any], is_elsewhere: bool = False,
    ) -> None:  # fmt: skip
        """`request_kwargs`: as `DoorAddress`. `is_elsewhere`: what stands for the door is no door of ours."""
        self._settings, self._listener = settings, listener
        agent = {
            "function": settings.function, "command": settings.command, "kind": settings.kind,
            "options": settings.options, "concurrency": settings.concurrency, "has_door": settings.has_door,
            "is_isolated": settings.isolation == "process", "max_state_mb": settings.max_state_mb,
            "request_kwargs": dict(request_kwargs), "is_elsewhere": is_elsewhere,
        }  # fmt: skip
        self._setup = packet(SETUP, json.dumps(agent).encode())
        self._code = Code("the agent", "agent.memory_mb", settings.memory_mb or half_mb())
        self._environment = environment_of(import_paths)
        self._tasks = asyncio.TaskGroup()
        self._starting: set[asyncio.Task[AgentChild]] = set()
        self._children: list[AgentChild] = []  # that take any episode
        self._alone: list[AgentChild] = []  # that have one episode each
        self._has_started = asyncio.Event()
        self._idle_deaths = 0
        self._is_closed = False
        self.asks_at_door = False
        """Whether the agent has no other way to its policy; known when they are started."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all children, at once. Raises: as `start`, in a group, if one could not be replaced."""
        self._is_closed = True
        children = [*self._children, *self._alone]
        for child in children:
            child.end("The worker ends.")
        for task in self._starting:
            task.cancel()
        if not isinstance(error, asyncio.CancelledError):
            kind = error = trace = None  # no fault of a child: not to be told as one
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            for child in children:
                await child.gone.wait()

    async def start(self) -> None:
        """Start the children.

        Raises: ConfigError if the agent cannot be imported or adapted, or its server has too few sessions;
        RunError.
        """
        if is_address(self._settings.function):
            await check_sessions(self._settings.function, self._settings.concurrency)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._settings.processes):
                tasks.create_task(self._start(self._children), name=f"agent process {number}")

    async def place(self, *, is_alone: bool) -> AgentChild:
        """A process for one episode more: the one with the fewest, or one of its own.

        Raises: RunError if none could be started.
        """
        if is_alone:
            return await self._start(self._alone)
        while not (ready := [child for child in self._children if child.is_ready]):
            self._has_started.clear()
            await self._has_started.wait()
        return min(ready, key=lambda child: len(child.episodes))

    def answered(self, child: AgentChild) -> None:
        """An episode of the process has said something: it works."""
        self._idle_deaths = 0
        self._end_if_idle(child)

    def _end_if_idle(self, child: AgentChild) -> None:
        if child in self._alone and child.is_idle:
            child.end("Its one episode has ended.")

    # -----------------------------------------------------------------------------------------------------

    async def _start(self, where: list[AgentChild]) -> AgentChild:
        """Raises: ConfigError, RunError."""
        child = AgentChild(
            self._code, setup=self._setup, listener=self._listener, on_gone=self._on_gone,
            on_obeyed=self._end_if_idle,
            most_blocked_s=BLOCKED_SHARE * self._settings.turn_timeout_s,
        )  # fmt: skip
        await child.start("workers.agent.process", self._settings.name, self._environment)
        if not child.gone.is_set():
            where.append(child)
        if self._is_closed:
            child.end("The worker ends.")
        await asyncio.wait([child.ready], timeout=START_LIMIT_S)
        if not child.ready.done():
            child.end(
                f"The process of the agent did not import its module within {START_LIMIT_S:g} s. "
                "Look at what the module does when it is imported, such as loading a model or waiting for a "
                "server, and have it done with the first call."
            )
            await child.gone.wait()
        try:
            child.ready.result()
        except ConfigError as error:
            raise ConfigError(f"`{self._settings.key}` cannot be used. {error}") from None
        except RunError:
            if child.was_killed and self._idle_deaths < MAX_IDLE_DEATHS - 1:  # not by what it imports, maybe
                return await self._replace(child, where)
            raise RunError(f"The agent {self._settings.name!r} did not start. {child.reason}") from None
        self.asks_at_door |= child.asks_at_door
        self._has_started.set()
        return child

    def _on_gone(self, child: AgentChild) -> None:
        if child in self._alone:
            self._alone.remove(child)
            return
        if child in self._children:
            self._children.remove(child)
        if child.ready.done() and child.ready.exception() is None and not self._is_closed:
            task = self._tasks.create_task(self._replace(child, self._children), name="agent process again")
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _replace(self, child: AgentChild, where: list[AgentChild]) -> AgentChild:
        """Raises: ConfigError, RunError."""
        logger.warning("%s It is started again.", child.reason)
        self._idle_deaths += 1
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise RunError(
                f"The process of the agent {self._settings.name!r} has ended {self._idle_deaths} times "
                f"in a row, and no episode said anything between. {child.reason}"
            )
        return await self._start(where)
