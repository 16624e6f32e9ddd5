"""Parses an answer of the policy into reasoning, text and tool calls.

Invariants: pure; no text is an error: an unreadable call is still a call, with the text as its name or
arguments, so that the environment can answer it. Arguments stay the text that was sampled.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
ARGUMENTS = re.compile(r'"arguments"\s*:\s*')
THOUGHT = re.compile(r"\A\s*+(?:<think>)?(.*?)</think>", re.DOTALL)
"""Possessive: else an answer of white space alone is searched once for each of its characters."""


class ToolCall(NamedTuple):
    """One call that the policy asks for."""

    name: str
    arguments: str  # as written


@dataclass(frozen=True, slots=True)
class Parsed:
    """One answer of the policy."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    unreadable: int  # calls that are no JSON object with a name
    ids: tuple[str, ...] = ()
    """Ids of the calls, if the policy writes them."""


CallReader = Callable[[str], tuple[str, list[ToolCall], int]]
"""Returns the rest of the text, the calls in it, and the number of unreadable calls."""


def hermes(text: str) -> tuple[str, list[ToolCall], int]:
    """Calls as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""
    calls, unreadable = [], 0
    for block in HERMES.findall(text):
        call, is_readable = _read_block(block.strip())
        calls.append(call)
        unreadable += not is_readable
    return HERMES.sub("", text).strip() if calls else text, calls, unreadable


def no_calls(text: str) -> tuple[str, list[ToolCall], int]:
    """No calls: all of it is text."""
    return text, [], 0


READERS: dict[str, CallReader] = {"hermes": hermes, "none": no_calls}


def parse(text: str, read_calls: CallReader) -> Parsed:
    """One answer, as text without the token that ended it."""
    reasoning = ""
    if thought := THOUGHT.match(text):
        reasoning, text = thought[1].strip(), text[thought.end() :].lstrip("\n")
    content, calls, unreadable = read_calls(text)
    return Parsed(content, reasoning, tuple(calls), unreadable)


def _read_block(block: str) -> tuple[ToolCall, bool]:
    try:
        whole = json.loads(block)
    except (ValueError, RecursionError):
        whole = None
    name = NAME.search(block)
    begin = ARGUMENTS.search(block)
    if isinstance(whole, dict) and isinstance(whole.get("name"), str):
        arguments = whole.get("arguments", {})
        written = _span(block, begin.end()) if begin else ""
        if isinstance(arguments, str):
            written = arguments  # JSON within a string, as some models have it
        elif (
            written and json.loads(written) != arguments
        ):  # a key of that name within another value, or twice
            written = json.dumps(arguments)
        return ToolCall(whole["name"], written or "{}"), True
    return ToolCall(name[1] if name else "", (begin and block[begin.end() :]) or block), False


def _span(text: str, begin: int) -> str:
    """The JSON value that begins at this place, as it is written."""
    _, end = json.JSONDecoder().raw_decode(text, begin)
    return text[begin:end]
