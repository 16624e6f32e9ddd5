"""What a program gives for rows, and why none can be read from it. Nothing is called, read or changed."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from protocol.plain_text import one_line

Given = Any  # whatever a program has passed
MOST_CHARS = 80  # of an argument that is shown
ROWS_OF_TABLES = {"to_dicts": "to_dicts()", "to_pylist": "to_pylist()", "iloc": 'to_dict("records")'}
"""What only a table of polars, Arrow or pandas has -> how it gives its rows."""


def why_no_rows(prompts: Given) -> str:
    """What it is, why no rows can be read from it, and what to do; "" if they can."""
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
        return ""
    elif callable(prompts):
        remedy = "call it, and pass what it returns"
    wanted = "expected an iterable of rows (mappings), such as a list or a generator"
    return f"{in_short(prompts)}; {wanted}{remedy and f': {remedy}'}."


def _rows_of_table(prompts: Given) -> str:
    """The call that gives the rows of a table, which itself gives columns or names; "" if it is none."""
    calls = ROWS_OF_TABLES.items() if hasattr(prompts, "columns") else ()
    return next((call for name, call in calls if hasattr(prompts, name)), "")


def in_short(given: Given) -> str:
    """An argument in a few words."""
    if isinstance(given, type) or (inspect.isroutine(given) and not isinstance(given, partial)):
        name = cast("Callable[..., Given]", given).__qualname__
        return f"the {'class' if isinstance(given, type) else 'function'} {name}"
    text = one_line(repr(given))
    return f"{text if len(text) <= MOST_CHARS else f'{text[:MOST_CHARS]}...'} of type {type(given).__name__}"
