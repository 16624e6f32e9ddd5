"""Looks at the arguments of a Controller, which Python itself believes.

Invariant: nothing is called, read or changed; what a run could not use is refused in one sentence.
"""

import inspect
import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from controller.config.load import refuse_problems
from controller.config.models import Config
from controller.data.iterables import in_short, why_no_rows
from protocol.errors import ConfigError
from protocol.plain_text import one_line

Given = Any  # whatever a program has passed


def refuse_other_than_config(config: Given) -> None:
    """Raises: ConfigError if it is no Config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"The configuration is {in_short(config)}; expected what `load_config(path, overrides)` returns."
        )


def refuse_problems_of(config: Config) -> None:
    """Raises: ConfigError if `load_config` would refuse the configuration.

    It need not come from there: `Config(...)` does not know the rules between fields, and
    `model_copy(update=...)` looks at nothing.
    """
    try:
        text = config.model_dump_json(warnings="error")
    except PydanticSerializationError as error:
        raise ConfigError(
            f"The configuration holds a value of another type than its key has: {one_line(str(error))}. "
            "model_copy(update=...) looks at no value: change keys with overrides of `load_config`."
        ) from None
    if unknown := _unknown(config, ""):
        raise ConfigError(
            f"The configuration holds {unknown}, and there is no such key. model_copy(update=...) looks at "
            "no name: change keys with overrides of `load_config`."
        )
    refuse_problems(json.loads(text), "that was given to Controller")


def refuse_prompts(prompts: Given, config: Config) -> None:
    """Raises: ConfigError if no rows can be read from it, or the configuration mixes several sources."""
    if prompts is None:
        return
    if problem := why_no_rows(prompts):
        raise ConfigError(f"`prompts` is {problem}")
    if (count := len(config.data.sources)) > 1:
        raise ConfigError(
            f"`prompts` is one source, and data.sources of the configuration mixes {count}; expected one of "
            "the two. Leave data.sources out, or prompts."
        )


def refuse_callbacks(**callbacks: Given) -> None:
    """Raises: ConfigError if the run could not call one of them, or nobody would await what it returns."""
    for name, callback in callbacks.items():
        if callback is None:
            continue
        if not callable(callback):
            raise ConfigError(f"`{name}` is {in_short(callback)}; expected a function, or None.")
        called = getattr(callback, "__call__", None)  # noqa: B004  # its code is asked for
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called):
            raise ConfigError(
                f"`{name}` is {in_short(callback)}, an `async def`, which nobody would await; expected a "
                "plain function. It may start a task (asyncio.create_task), or put what it hears into a "
                "queue."
            )


def _unknown(model: BaseModel, prefix: str) -> str:
    """The dotted path of something in a model that is no field of it; "" if all is."""
    fields = cast("Mapping[str, Given]", type(model).model_fields)
    for name, value in vars(model).items():
        if name not in fields:
            return f"{prefix}{name} = {in_short(value)}"
        if isinstance(value, BaseModel) and (found := _unknown(value, f"{prefix}{name}.")):
            return found
    return ""
