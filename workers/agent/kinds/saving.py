"""Environments with `save() -> bytes` and `load(bytes)`: saved before each turn, loaded instead of replayed.

Invariant: a loaded state was saved by an object of the same class, before a request to the policy.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from protocol.errors import ConfigError
from workers.agent.kinds.function import result_of
from workers.agent.policy import AgentPolicy
from workers.agent.saved_state import pack, unpack

METHODS = ("save", "load")


def saves(target: Any) -> bool:
    """Whether objects of a class can be saved, which needs a `save` without arguments.

    A `save` that needs arguments is a tool. Raises: ConfigError if it can be saved and has no `load`.
    """
    save, load = (getattr(target, name, None) for name in METHODS)
    if not callable(save) or set(_needed(save)) - {"self"}:
        return False
    if not callable(load):
        raise ConfigError(
            f"The class {target.__name__} has `save()` and no `load(state)`; an environment that is to be "
            "saved needs `save() -> bytes` and `load(state: bytes)`; a tool of this name needs an argument."
        )
    return True


def is_saving(environment: Any) -> bool:
    """Whether the object can be saved and loaded."""
    save, load = getattr(environment, "save", None), getattr(environment, "load", None)
    return callable(save) and callable(load) and not _needed(save)


def _needed(function: Any) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


async def keep(policy: AgentPolicy, environment: Any, fields: Mapping[str, Any]) -> None:
    """Save it with its loop's fields, for the next request. Raises: TypeError if `save` gives no bytes."""
    if not is_saving(environment):
        return
    state = await result_of(environment.save)
    if not isinstance(state, bytes):
        raise TypeError(f"`save` returned {state!r:.80} of type {type(state).__name__}; expected bytes.")
    policy.save(pack(fields, state))


async def loaded(policy: AgentPolicy, environment: Any) -> dict[str, Any] | None:
    """The loop's fields, with the environment restored; None if the episode begins."""
    if policy.saved is None or not is_saving(environment):
        return None
    fields, state = unpack(policy.saved)
    await result_of(environment.load, state)
    return fields
