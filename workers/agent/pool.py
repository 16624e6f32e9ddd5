"""The processes of an agent worker, and the choice of a process for each episode.

Invariants: those of KeptPool; an episode that was in a process when it died runs alone in a process the next
time, to find the episode that kills processes.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from protocol.agents.settings import AgentSettings
from workers.agent.child import AgentChild, EpisodeListener
from workers.agent.kinds.openenv import is_address
from workers.agent.kinds.openenv_wire import check_sessions
from workers.agent.pipe import SETUP
from workers.children.packets import packet
from workers.children.pool import KeptPool, PooledCode
from workers.children.process import Code, environment_of, half_mb

BLOCKED_SHARE = 0.5
"""Share of `agent.turn_timeout_s`, so that other episodes of a process do not time out because of one."""
NO_TRAINED_TURN = "The agent returned before the policy had answered once in a conversation that is trained."


class AgentPool(KeptPool[AgentChild]):
    """`agent.processes` children around the agent, within `async with`."""

    def __init__(
        self, settings: AgentSettings, listener: EpisodeListener, import_paths: tuple[str, ...] = (),
        *, request_kwargs: Mapping[str, Any], is_elsewhere: bool = False,
    ) -> None:  # fmt: skip
        """`request_kwargs`: as in `DoorAddress`. `is_elsewhere`: the door is a foreign endpoint."""
        idle = ", and no episode said anything between"
        what = PooledCode("workers.agent.process", settings.name, "agent", settings.key, idle)
        super().__init__(what, environment_of(import_paths))
        self._settings, self._listener = settings, listener
        agent = {
            "function": settings.function, "command": settings.command, "kind": settings.kind,
            "options": settings.options, "concurrency": settings.concurrency, "has_door": settings.has_door,
            "is_isolated": settings.isolation == "process", "max_state_mb": settings.max_state_mb,
            "request_kwargs": dict(request_kwargs), "is_elsewhere": is_elsewhere,
        }  # fmt: skip
        self._setup = packet(SETUP, json.dumps(agent).encode())
        self._code = Code("the agent", "agent.memory_mb", settings.memory_mb or half_mb())
        self._has_started = asyncio.Event()
        self.asks_at_door = False
        """Whether the agent can reach its policy only at the door; known after the start."""

    async def start(self) -> None:
        """Start the children.

        Raises: ConfigError if the agent cannot be imported or adapted, or its server has too few sessions;
        RunError.
        """
        if is_address(self._settings.function):
            await check_sessions(self._settings.function, self._settings.concurrency)
        await self._start_all(self._settings.processes)

    async def place(self, *, is_alone: bool) -> AgentChild:
        """A process for one more episode: the one with the fewest, or a new one for it alone.

        Raises: RunError if none could be started.
        """
        if is_alone:
            return await self._start(partial(self._make, is_alone=True))
        while not (ready := [child for child in self._children if child.is_ready and not child.is_alone]):
            self._has_started.clear()
            await self._has_started.wait()
        return min(ready, key=lambda child: len(child.episodes))

    def answered(self, child: AgentChild) -> None:
        """Note that the process works: one of its episodes has sent a message."""
        self._idle_deaths = 0
        self._end_if_idle(child)

    def _end_if_idle(self, child: AgentChild) -> None:
        if child.is_alone and child.is_idle:
            child.end("Its one episode has ended.")

    # -- of a KeptPool --------------------------------------------------------------------------------------

    def _make(self, *, is_alone: bool = False) -> AgentChild:
        return AgentChild(
            self._code, setup=self._setup, listener=self._listener, on_gone=self._on_gone,
            on_obeyed=self._end_if_idle, is_alone=is_alone,
            most_blocked_s=BLOCKED_SHARE * self._settings.turn_timeout_s,
        )  # fmt: skip

    def _on_started(self, child: AgentChild) -> None:
        self.asks_at_door |= child.asks_at_door
        self._has_started.set()

    def _is_replaced(self, child: AgentChild) -> bool:
        return not child.is_alone
