"""Agents that are a function, or a class with one: `async def episode(policy, row)`, or another shape.

A function that is not async runs in a thread, and asks its policy at the door.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from protocol.agents.function_shapes import EPISODE, SHAPES, FunctionShape, shape_of
from protocol.errors import ConfigError
from workers.agent.kinds.other_systems import PLAYERS
from workers.agent.policy import AgentPolicy

PlayEpisode = Callable[[AgentPolicy, Mapping[str, Any]], Awaitable[Any]]
"""Plays one episode of the user's code; every kind is adapted to this."""


async def result_of(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """The result of a user's function or method, async or not. Raises: whatever it raises.

    A sync one runs in a thread, so that other episodes go on meanwhile. Its result is awaited if possible: a
    decorator may hide that a function is async.
    """
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **named)
    result = await asyncio.to_thread(function, *arguments, **named)
    return await result if inspect.isawaitable(result) else result


def is_function(target: Any) -> bool:
    """Whether the object has the parameters `policy` and `row`."""
    return function_shape(target) is EPISODE


def function_shape(target: Any) -> FunctionShape | None:
    """The shape of the object by the names of its parameters; None if it has none."""
    called = _called(target)
    return None if called is None else shape_of(_parameters(called))


def from_function(target: Any, options: Mapping[str, Any], *, has_door: bool = False) -> PlayEpisode:
    """The user's function, or an object of the user's class, as a kind. Raises: ConfigError."""
    if inspect.isclass(target):
        target, options = _made(target, options), {}
    called = _called(target)
    shape = function_shape(target) or EPISODE
    is_async = called is not None and inspect.iscoroutinefunction(inspect.unwrap(called))
    if called is None or not (is_async or has_door or shape.asks_at_door):
        raise ConfigError(
            f"The agent is {type(target).__name__} {target!r:.80}; expected `async def episode(policy, "
            "row)`, or a class with such a `run` or `__call__`. One that is not async asks its policy over "
            "HTTP: set `agent.door: true`."
        )
    takes = _taken(called, shape, options)

    async def call(given: Mapping[str, Any]) -> Any:
        given = {name: value for name, value in given.items() if name in takes}
        if not is_async:
            return await result_of(called, **given, **options)
        return await called(**given, **options)

    async def episode(policy: AgentPolicy, row: Mapping[str, Any]) -> Any:
        return await call({"policy": policy, "row": row})

    make = PLAYERS.get(shape)
    return episode if make is None else make(call, takes)


def _made(target: Any, options: Mapping[str, Any]) -> Any:
    try:
        return target(**options)
    except TypeError as error:
        raise _misfit(target, options, error) from None


def check_options(target: Any, options: Mapping[str, Any]) -> None:
    """Check options against a class's parameters, without making an object. Raises: ConfigError."""
    try:
        # wrapped signatures are ignored: a decorator may supply arguments
        taken = inspect.signature(target, follow_wrapped=False)
    except (TypeError, ValueError):  # compiled: only a call could tell
        return
    try:
        taken.bind(**options)
    except TypeError as error:
        raise _misfit(target, options, error) from None


def _misfit(target: Any, options: Mapping[str, Any], error: TypeError) -> ConfigError:
    what = "class" if inspect.isclass(target) else "function"
    how = "made of" if what == "class" else "called with"
    name = getattr(target, "__name__", type(target).__name__)
    return ConfigError(
        f"The agent's {what} {name} cannot be {how} `agent.options` = {dict(options)}: {error}."
    )


def _called(target: Any) -> Any:
    """The callable for an episode: the object itself, its `run`, or its `__call__`."""
    if inspect.isclass(target):
        return getattr(target, "run", None) or vars(target).get("__call__")
    if inspect.isroutine(target):
        return target
    return getattr(target, "run", None) or getattr(target, "__call__", None)  # noqa: B004  # the method


def _parameters(called: Any) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(called).parameters)
    except (TypeError, ValueError):
        return {}


def _taken(called: Any, shape: FunctionShape, options: Mapping[str, Any]) -> frozenset[str]:
    """The names of its shape that a function takes. Raises: ConfigError if it cannot be called with them."""
    parameters = _parameters(called)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    lacking = [name for name in needed if name not in (*shape.names, *options)]
    by_name = {name for name, each in parameters.items() if each.kind is not each.POSITIONAL_ONLY}
    unknown = [name for name in (*shape.told_by, *options) if name not in by_name and not takes_any]
    twice = [name for name in options if name in shape.names]
    if lacking or unknown or twice:
        more = f", if it wants them {_listed(shape.more)}" if shape.more else ""
        others = [each.words for each in SHAPES if each is not EPISODE]
        or_else = f" Or {' or '.join(others)}." if shape is EPISODE else ""
        raise ConfigError(
            f"The agent takes ({_told(parameters, by_name)}); expected {_listed(shape.told_by)}{more}, and "
            f"what `agent.options` gives ({', '.join(options) or 'nothing'}).{or_else}"
        )
    return frozenset(name for name in shape.names if takes_any or name in by_name)


def _told(parameters: Collection[str], by_name: Collection[str]) -> str:
    return ", ".join(name if name in by_name else f"{name} by position only" for name in parameters)


def _listed(names: tuple[str, ...]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
