"""Looks at the arguments of a Controller, which Python itself believes.

Invariant: nothing is called, read or changed; what a run could not use is refused in one sentence.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from controller.config.load import refuse_problems
from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.plain_text import one_line

Given = Any  # whatever a program has passed
MOST_CHARS = 80  # of an argument that is shown
ROWS_OF_TABLES = {"to_dicts": "to_dicts()", "to_pylist": "to_pylist()", "iloc": 'to_dict("records")'}
"""What only a table of polars, Arrow or pandas has -> how it gives its rows."""


def refuse_other_than_config(config: Given) -> None:
    """Raises: ConfigError if it is no Config."""
    if not isinstance(config, Config):
        raise ConfigError(
            f"The configuration is {_shown(config)}; expected what `load_config(path, overrides)` returns."
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


def refuse_prompts(prompts: Given) -> None:
    """Raises: ConfigError if no rows can be read from it."""
    if prompts is None:
        return
    wanted = "expected an iterable of rows (mappings), such as a list or a generator"
    remedy = ""
    if isinstance(prompts, str | bytes) or hasattr(prompts, "__fspath__"):
        remedy = "a file of rows is named by data.path"
    elif call := _rows_of_table(prompts):
        remedy = f"of a table, pass the rows, prompts.{call}"
    elif isinstance(prompts, Mapping):
        remedy = "put a single row into a list, and of several splits pass one"
    elif hasattr(type(prompts), "__aiter__"):
        remedy = "it is read in a thread, without a loop, so `async def` cannot give the rows"
    elif hasattr(type(prompts), "__iter__") or hasattr(type(prompts), "__getitem__"):
        return
    elif callable(prompts):
        remedy = "call it, and pass what it returns"
    raise ConfigError(f"`prompts` is {_shown(prompts)}; {wanted}{remedy and f': {remedy}'}.")


def _rows_of_table(prompts: Given) -> str:
    """The call that gives the rows of a table, which itself gives columns or names; "" if it is none."""
    calls = ROWS_OF_TABLES.items() if hasattr(prompts, "columns") else ()
    return next((call for name, call in calls if hasattr(prompts, name)), "")


def refuse_callbacks(**callbacks: Given) -> None:
    """Raises: ConfigError if the run could not call one of them, or nobody would await what it returns."""
    for name, callback in callbacks.items():
        if callback is None:
            continue
        if not callable(callback):
            raise ConfigError(f"`{name}` is {_shown(callback)}; expected a function, or None.")
        called = getattr(callback, "__call__", None)  # noqa: B004  # its code is asked for
        if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(called):
            raise ConfigError(
                f"`{name}` is {_shown(callback)}, an `async def`, which nobody would await; expected a plain "
                "function. It may start a task (asyncio.create_task), or put what it hears into a queue."
            )


def _unknown(model: BaseModel, prefix: str) -> str:
    """The dotted path of something in a model that is no field of it; "" if all is."""
    fields = cast("Mapping[str, Given]", type(model).model_fields)
    for name, value in vars(model).items():
        if name not in fields:
            return f"{prefix}{name} = {_shown(value)}"
        if isinstance(value, BaseModel) and (found := _unknown(value, f"{prefix}{name}.")):
            return found
    return ""


def _shown(given: Given) -> str:
    """An argument in a few words."""
    if isinstance(given, type) or (inspect.isroutine(given) and not isinstance(given, partial)):
        name = cast("Callable[..., Given]", given).__qualname__
        return f"the {'class' if isinstance(given, type) else 'function'} {name}"
    text = one_line(repr(given))
    return f"{text if len(text) <= MOST_CHARS else f'{text[:MOST_CHARS]}...'} of type {type(given).__name__}"
