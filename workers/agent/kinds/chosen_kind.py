"""Finds the kind of a user's agent: by `agent.kind`, or by the object's attributes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from protocol.agents.function_shapes import EPISODE, SESSION, WORKFLOW
from protocol.errors import ConfigError
from protocol.importing import load_object
from workers.agent.kinds.function import PlayEpisode, from_function, function_shape, is_function
from workers.agent.kinds.gym import from_gym, is_gym
from workers.agent.kinds.openenv import from_openenv, is_address, is_openenv
from workers.agent.kinds.tools import from_tools, is_tools
from workers.agent.kinds.verifiers import from_taskset, is_taskset


class AgentKind(NamedTuple):
    """One kind of agent."""

    is_of: Callable[[Any], bool]
    make: Callable[[Any, Mapping[str, Any]], PlayEpisode]
    shape: str


KINDS = {
    "function": AgentKind(
        is_function,
        from_function,
        f"{EPISODE.words}, or a class with it, {WORKFLOW.words} or {SESSION.words}",
    ),
    "verifiers": AgentKind(is_taskset, from_taskset, "a taskset of verifiers, by its id or its class"),
    "openenv": AgentKind(is_openenv, from_openenv, "the address of a server of OpenEnv, or a class of it"),
    "gym": AgentKind(
        is_gym, from_gym, "a class with `reset(seed, options)` or `init(prompt)`, and `step(text)`"
    ),
    "tools": AgentKind(is_tools, from_tools, "a class with `reset`, `get_reward` and methods as tools"),
}


def load_agent(name: str, kind: str) -> Any:
    """The object that `agent.function` names: imported, or an id or address as it is.

    Raises: ConfigError.
    """
    return name if is_address(name) or (kind == "verifiers" and ":" not in name) else load_object(name)


def make_episode(
    target: Any, *, kind: str = "auto", options: Mapping[str, Any] | None = None, has_door: bool = False
) -> PlayEpisode:
    """A coroutine function that plays one episode with the user's object.

    `has_door`: a function that is not async can reach its policy. Raises: ConfigError.
    """
    kind = _kind_of(target, kind)
    if kind not in KINDS:
        shapes = "; ".join(f"{name}: {each.shape}" for name, each in KINDS.items())
        raise ConfigError(
            f"The agent is {type(target).__name__} {target!r:.80}, which is of no kind. Expected {shapes}. "
            "`agent.kind` says which it is."
        )
    if kind == "function":
        return from_function(target, options or {}, has_door=has_door)
    return KINDS[kind].make(target, options or {})


def asks_at_door(target: Any, kind: str = "auto") -> bool:
    """Whether the user's object can reach its policy only at the door."""
    shape = function_shape(target) if _kind_of(target, kind) == "function" else None
    return shape is not None and shape.asks_at_door


def _kind_of(target: Any, kind: str) -> str:
    """`agent.kind`, or the kind found by attributes; "" if there is none."""
    if kind != "auto":
        return kind
    of_another_system = "function" if function_shape(target) is not None else ""  # only if no other kind fits
    return next((name for name, each in KINDS.items() if each.is_of(target)), of_another_system)
