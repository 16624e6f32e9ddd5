"""Imports an agent for `launch.py check` as an agent process does, in a process of `protocol.asking`."""

import asyncio
from collections.abc import Mapping
from typing import Any

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError
from workers.agent.kinds.chosen_kind import load_agent, make_episode
from workers.agent.kinds.openenv import is_address
from workers.agent.kinds.openenv_wire import check_sessions


def answer(question: Mapping[str, Any]) -> str | None:
    """Why no episode can be played with the agent; None if one can."""
    settings = AgentSettings.model_validate_json(question["agent"], strict=False)
    try:
        target = load_agent(settings.function, settings.kind)
        make_episode(target, kind=settings.kind, options=settings.options, has_door=settings.has_door)
        if is_address(target):
            asyncio.run(check_sessions(target, settings.concurrency))
    except ConfigError as error:
        return str(error)
    return None
