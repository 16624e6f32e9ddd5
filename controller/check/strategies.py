"""Tries the user's strategy in a process of its own: imports it, and calls it on made-up situations.

`launch.py check` starts it by `protocol.asking` with
`{"field": "schedule", "name": "mine.py:schedule", "sources": [["easy", 1.0], ["hard", 2.0]]}`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controller.check.situations import try_out
from controller.config.strategies import load_strategy
from protocol.errors import ConfigError, PluginError
from strategies.kinds import key_of
from strategies.own import GOES_ON

Remarks = Iterator[tuple[str, str]]


def try_strategy(field: str, name: str, sources: Sequence[tuple[str, float]] = ()) -> Remarks:
    """("error" or "note", text) on the strategy at the import path `name`, as its key calls it.

    `sources`: name and weight of each source of prompts.
    """
    try:
        for text in [*try_out(field, load_strategy(field, name), sources)]:
            yield "note", text
    except (ConfigError, PluginError) as error:
        yield "error", str(error).removeprefix(f"{key_of(field)}: ").replace(GOES_ON, "")


def answer(question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The remarks of `try_strategy` on the question's strategy."""
    return list(try_strategy(question["field"], question["name"], question["sources"]))
