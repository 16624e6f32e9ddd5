"""Wraps renderers and tool-call readers of users, with checks of their results.

Invariants: their exceptions, and results that no engine could take, become a ValueError that names the
configuration key; no text is lost: what a reader leaves out is still in the tokens.
"""

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from protocol.blame import shown, what, where
from protocol.errors import ConfigError
from protocol.importing import load_object
from workers.agent.rendering.renderer import Past, Renderer, TurnReader
from workers.agent.rendering.spelling import Messages, Tools, end_tokens, text_of
from workers.agent.rendering.tool_calls import CallReader, Parsed, ToolCall

RENDERER, READER = "agent.renderer", "agent.tool_calls"
METHODS = ("render", "extend", "parse")
MAX_ID = 2**31


class OwnRenderer:
    """A user's renderer, made from the tokenizer by the import path of `agent.renderer`."""

    def __init__(self, own: Any, tokenizer: Any, ends: frozenset[int]) -> None:
        """`ends`: the tokens that end a turn."""
        self._own, self._tokenizer, self._ends = own, tokenizer, ends
        self._sees_past = _takes(own.extend, "past")

    def render(self, messages: Messages, tools: Tools) -> list[int]:
        tokens = ids_of(self._call("render", messages, tools), "render")
        if not tokens:
            raise ValueError(f"{RENDERER}: `render` gave no tokens; expected a prompt that can be continued.")
        return tokens

    def extend(
        self, last: int | None, messages: Messages, tools: Tools, *, past: Past | None = None
    ) -> list[int] | None:
        more = {"past": past} if self._sees_past else {}
        tokens = self._call("extend", last, messages, tools, **more)
        return None if tokens is None else ids_of(tokens, "extend")

    def parse(
        self,
        tokens: Sequence[int],
        *,
        reads_calls: bool = True,
        prompt: Sequence[int] = (),
        tools: Tools = None,
    ) -> Parsed:
        parsed = _parsed(self._call("parse", list(tokens)))
        return parsed if reads_calls or not parsed.calls else Parsed(self.text(tokens), "", (), 0)

    def text(self, tokens: Sequence[int]) -> str:
        return text_of(self._tokenizer, tokens, self._ends)

    def with_template_kwargs(self, kwargs: Mapping[str, Any]) -> Self:
        """The result of its method of this name. Raises: ValueError if it lacks the method, or that fails."""
        if not callable(getattr(self._own, "with_template_kwargs", None)):
            raise ValueError(
                f"{RENDERER}: {shown(self._own)} has no method `with_template_kwargs(kwargs)`, and `data` or "
                "the row has `chat_template_kwargs`. Give it one that returns a renderer which writes by "
                "them, or leave them out."
            )
        other = self._call("with_template_kwargs", kwargs)
        if lacking := _lacks(other):
            raise ValueError(
                f"{RENDERER}: `with_template_kwargs` gave {shown(other)}, which has no {lacking}; expected a "
                "renderer."
            )
        return type(self)(other, self._tokenizer, self._ends)

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        return called(RENDERER, getattr(self._own, name), *arguments, **named)


def own_renderer(path: str, tokenizer: Any, stops: Collection[int] = ()) -> Renderer:
    """The renderer that the import path makes from the tokenizer; `stops`: the tokens at which engines stop.

    Raises: ConfigError if it lacks methods.
    """
    make = load_object(path)
    try:
        own = make(tokenizer)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(
            f"{RENDERER}: {where(make, error)} raised {what(error)} when it was called with the tokenizer; "
            "expected a renderer."
        ) from error
    if lacking := _lacks(own):
        raise ConfigError(
            f"{RENDERER}: {path} made {shown(own)}, which has no {lacking}; expected "
            "`render(messages, tools)`, `extend(last, messages, tools)` and `parse(tokens)` (docs/agents.md)."
        )
    if isinstance(own, TurnReader):  # it inherits from ours, and was made without the stops
        own.end_at(stops)
    return OwnRenderer(own, tokenizer, end_tokens(tokenizer, stops))


def _lacks(own: Any) -> str:
    """The methods of a renderer that the object lacks; "" if none."""
    return ", ".join(name for name in METHODS if not callable(getattr(own, name, None)))


def own_reader(path: str) -> CallReader:
    """The user's function from a text to (rest of the text, calls). Raises: ConfigError if not callable."""
    function = load_object(path)
    if not callable(function):
        raise ConfigError(
            f"{READER}: {path} is {shown(function)}; expected a function from the text of an answer to (the "
            "rest of it, [(name, arguments), ...])."
        )

    def read(text: str) -> tuple[str, list[ToolCall], int]:
        found = called(READER, function, text)
        if isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], str):
            return found[0], _calls(found[1], READER), 0
        raise ValueError(
            f"{READER}: {where(function)} answered {shown(found)}; expected (the rest of the text, [(name, "
            "arguments), ...])."
        )

    return read


def called(key: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The function's result. Raises: ValueError with a message for the user, for any exception."""
    try:
        return function(*arguments, **named)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ValueError(f"{key}: {where(function, error)} raised {what(error)}.") from error


def ids_of(tokens: Any, name: str) -> list[int]:
    """The result of a method as token ids. Raises: ValueError if it is none."""
    found = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(found, list | tuple) and all(type(id) is int and 0 <= id < MAX_ID for id in found):
        return list(found)
    more = ", or None where it does not only append" if name == "extend" else ""
    raise ValueError(f"{RENDERER}: `{name}` gave {shown(tokens)}; expected a list of token ids{more}.")


def _takes(method: Callable[..., Any], name: str) -> bool:
    """Whether a method has a parameter of this name, as in subclasses of the built-in renderers."""
    try:
        return name in inspect.signature(method).parameters
    except (TypeError, ValueError):  # without a readable signature
        return False


def _parsed(found: Any) -> Parsed:
    """Raises: ValueError."""
    if isinstance(found, Parsed):
        found = {"content": found.content, "reasoning_content": found.reasoning, "tool_calls": found.calls}
    if isinstance(found, Mapping):
        content, thought = found.get("content") or "", found.get("reasoning_content") or ""
        if isinstance(content, str) and isinstance(thought, str):
            return Parsed(content, thought, tuple(_calls(found.get("tool_calls") or (), RENDERER)), 0)
    raise ValueError(
        f"{RENDERER}: `parse` gave {shown(found)}; expected a mapping with `content`, and "
        "`reasoning_content` and `tool_calls` where there are any."
    )


def _calls(found: Any, key: str) -> list[ToolCall]:
    """Raises: ValueError."""
    calls: list[ToolCall] = []
    for call in found if isinstance(found, list | tuple) else [found]:
        if not (isinstance(call, list | tuple) and len(call) == 2 and isinstance(call[0], str)):
            raise ValueError(
                f"{key}: a tool call is {shown(call)}; expected (name, arguments), the arguments "
                "as JSON text."
            )
        try:
            written = call[1] if isinstance(call[1], str) else json.dumps(call[1])
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{key}: the arguments of {call[0]!r:.60} are no JSON: {error}.") from None
        calls.append(ToolCall(call[0], written))
    return calls
