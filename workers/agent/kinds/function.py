"""Agents that are a function, or a class with one: `async def episode(policy, row)`.

One that is not async runs in a thread, and asks its policy at the door.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.policy import AgentPolicy

PlayEpisode = Callable[[AgentPolicy, Mapping[str, Any]], Awaitable[Any]]
"""One episode of the user's code: what every kind is made into."""
OFFERED = ("policy", "row")


def is_function(target: Any) -> bool:
    """Whether it is of this kind by its shape: something with the parameters `policy` and `row`."""
    called = _called(target)
    return called is not None and {*OFFERED} <= {*_parameters(called)}


def from_function(target: Any, options: Mapping[str, Any], *, has_door: bool = False) -> PlayEpisode:
    """The user's function, or one object of the user's class. Raises: ConfigError."""
    if inspect.isclass(target):
        target, options = _made(target, options), {}
    called = _called(target)
    is_async = called is not None and inspect.iscoroutinefunction(inspect.unwrap(called))
    if called is None or not (is_async or has_door):
        raise ConfigError(
            f"The agent is {type(target).__name__} {target!r:.80}; expected `async def episode(policy, "
            "row)`, or a class with such a `run` or `__call__`. One that is not async asks its policy over "
            "HTTP: set `agent.door: true`."
        )
    _check_parameters(called, options)

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        if not is_async:
            return await asyncio.to_thread(called, policy=policy, row=row, **options)
        return await called(policy=policy, row=row, **options)

    return episode


def _made(target: Any, options: Mapping[str, Any]) -> Any:
    try:
        return target(**options)
    except TypeError as error:
        raise ConfigError(
            f"The agent's class {target.__name__} cannot be made of `agent.options` = {dict(options)}: "
            f"{error}."
        ) from None


def _called(target: Any) -> Any:
    """What is called for an episode: the thing itself, its `run`, or its `__call__`."""
    if inspect.isclass(target):
        return getattr(target, "run", None) or vars(target).get("__call__")
    if inspect.isroutine(target):
        return target
    return getattr(target, "run", None) or getattr(target, "__call__", None)  # noqa: B004  # itself is asked for


def _parameters(called: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return {}


def _check_parameters(called: Any, options: Mapping[str, Any]) -> None:
    """Raises: ConfigError."""
    parameters = _parameters(called)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    offered = {*OFFERED, *options}
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    lacking = [name for name in needed if name not in offered]
    unknown = [name for name in (*OFFERED, *options) if name not in parameters and not takes_any]
    if lacking or unknown:
        raise ConfigError(
            f"The agent takes ({', '.join(parameters)}); expected `policy` and `row`, and what "
            f"`agent.options` gives ({', '.join(options) or 'nothing'})."
        )
