"""Chat messages as agents write them: checks them, and compares them.

Invariants: pure; a message that passes `check_messages` contains text only; two messages that differ only in
what SDKs add or leave out (nulls, key order of arguments) are equal after `normal`.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workers.models.tokenizer import read_arguments

ROLES = ("system", "developer", "user", "assistant", "tool")
KEPT = ("role", "name", "content", "reasoning_content", "tool_call_id")
MAX_CHARS = 16 << 20  # of all messages together
MAX_TAKEN = 4  # remembered requests per episode, for as many conversations that grow at once
TOO_DEEP = "The messages are nested too deep. Give text, and tool calls as texts."


class _Checked(NamedTuple):
    """Checked messages of an earlier request."""

    told: list[Any]  # as received
    messages: list[dict[str, Any]]
    calls: frozenset[str]  # ids of all tool calls in them
    chars: int


NOTHING = _Checked([], [], frozenset(), 0)


class CheckedHistory:
    """Checks the requests of one episode; of each only the messages that are new since an earlier one.

    Callers must not change a list after passing it: it is kept.
    """

    def __init__(self) -> None:
        self._taken: deque[_Checked] = deque(maxlen=MAX_TAKEN)

    def check(self, messages: object) -> list[dict[str, Any]]:
        """As `check_messages`."""
        before = [one for one in self._taken if _begins_with(messages, one.told)]
        known = max(before, key=lambda one: len(one.told), default=NOTHING)
        found = _check(messages, known)
        if known is not NOTHING:
            self._taken.remove(known)  # a request that repeats the new one also repeats the known one
        if isinstance(messages, list):
            self._taken.append(found)
        return found.messages


def _begins_with(messages: object, told: list[Any]) -> bool:
    return isinstance(messages, list) and len(messages) > len(told) and messages[: len(told)] == told


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages of one request. Raises: ValueError in words if no policy could answer them."""
    return _check(messages, NOTHING).messages


def with_tool_names(
    messages: Sequence[Mapping[str, Any]], past: Sequence[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """The messages, in which a tool's answer has the tool's name, as some formats need and few clients tell.

    `past`: messages before them, which may have the calls.
    """
    names: dict[str, str] = {}
    told: list[Mapping[str, Any]] = []
    for message in [*past, *messages]:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        name = names.get(message.get("tool_call_id", ""))
        lacks = message["role"] == "tool" and name and not message.get("name")
        told.append({**message, "name": name} if lacks else message)
    return told[len(past) :]


def check_answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of an endpoint as agents get it. Raises: ValueError, TypeError if it is not a message."""
    return _check_message({**message, "role": "assistant"}, 0)


def _check(messages: object, known: _Checked) -> _Checked:
    """Check messages that begin with known ones. Raises: ValueError with a message for the user."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise ValueError(f"`messages` is {messages!r:.80}; expected a list of at least one chat message.")
    first = len(known.messages)
    new = [_check_message(message, place) for place, message in enumerate(messages[first:], first)]
    if new[-1]["role"] == "assistant":
        raise ValueError(
            "The last message is the assistant's own; expected one that it can answer, of the role user or "
            "tool. Append what the environment says first."
        )
    calls = _check_calls(new, first, known.calls)
    chars = known.chars + sum(len(text) for message in new for text in texts_of(message))
    if chars > MAX_CHARS:
        raise ValueError(f"The messages have {chars} characters; at most {MAX_CHARS} are taken.")
    return _Checked(list(messages), [*known.messages, *new], calls, chars)


def _check_message(message: object, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"Message {place} is {message!r:.80}; expected a mapping with `role` and `content`.")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"Message {place} has the role {role!r:.40}; expected one of {', '.join(ROLES)}.")
    copied = {str(key): value for key, value in message.items() if value is not None}
    copied["content"] = text_of(message.get("content"), place)
    if "tool_calls" in copied:
        copied["tool_calls"] = [_check_call(call, place) for call in _listed(copied["tool_calls"], place)]
        if not copied["tool_calls"]:
            del copied["tool_calls"]
    if role == "tool" and not isinstance(copied.get("tool_call_id"), str):
        raise ValueError(f"Message {place} answers a tool call, but has no `tool_call_id`.")
    return copied


def text_of(content: object, place: int) -> str:
    """The content of the message at this place as text: a string, or joined text parts; "" for None.

    Raises: ValueError with a message for the user if it is anything else.
    """
    if content is None:
        return ""
    parts = [content] if isinstance(content, str) else content
    if isinstance(parts, Sequence) and not isinstance(parts, bytes):
        texts = [_text_part(part) for part in parts]
        if None not in texts:
            return whole_text("".join(filter(None, texts)))
    raise ValueError(
        f"Message {place} has the content {content!r:.80}; expected text, or a list of text parts. Images "
        "and audio are not supported."
    )


def whole_text(text: str) -> str:
    """The text with replacements for half characters, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _text_part(part: object) -> str | None:
    """The text of one part; None if it is not text."""
    if isinstance(part, Mapping) and part.get("type") == "text":
        part = part.get("text")
    return part if isinstance(part, str) else None


def _listed(calls: object, place: int) -> Sequence[Any]:
    if isinstance(calls, Sequence) and not isinstance(calls, str | bytes):
        return calls
    raise ValueError(f"Message {place} has the tool calls {calls!r:.80}; expected a list.")


def _check_call(call: object, place: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise ValueError(f"Message {place} has the tool call {call!r:.80}; expected `id` and `function`.")
    name, arguments = function.get("name"), function.get("arguments", "")
    if not isinstance(name, str) or not isinstance(call.get("id"), str):
        raise ValueError(f"Message {place} has a tool call whose `id` or name is no text: {call!r:.80}.")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return {"id": call["id"], "type": "function", "function": {"name": name, "arguments": arguments}}


def _check_calls(messages: Sequence[Mapping[str, Any]], first: int, before: frozenset[str]) -> frozenset[str]:
    """Check that every tool answer has its call; returns the ids of all calls. Raises: ValueError.

    `before`: the ids of the calls in the `first` messages, which precede these.
    """
    open_calls = set(before)
    for place, message in enumerate(messages, first):
        ids = [call["id"] for call in message.get("tool_calls", ())]
        if len({*ids}) < len(ids):
            raise ValueError(f"Message {place} has two tool calls of one id: {', '.join(ids)!r:.80}.")
        open_calls.update(ids)
        if message["role"] == "tool" and message["tool_call_id"] not in open_calls:
            raise ValueError(
                f"Message {place} answers the tool call {message['tool_call_id']!r:.60}, which no message "
                "before it makes."
            )
    return frozenset(open_calls)


def texts_of(value: object) -> list[str]:
    """Every string in a message or a list of tools, however deep."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in texts_of(part)]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [text for part in value for text in texts_of(part)]
    return []


def replaced(value: Any, change: Mapping[str, str]) -> Any:
    """The value with parts of its strings replaced; `change` maps each part to its replacement."""
    if isinstance(value, str):
        for found, other in change.items():
            value = value.replace(found, other)
        return value
    if isinstance(value, Mapping):
        return {key: replaced(part, change) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [replaced(part, change) for part in value]
    return value


def normal(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a checked message that count when histories are compared."""
    kept = {key: message[key] for key in KEPT if message.get(key)}
    calls = [
        (call["id"], call["function"]["name"], read_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return kept | ({"tool_calls": calls} if calls else {})


def spoken(message: Mapping[str, Any]) -> dict[str, Any]:
    """A normalized message in the format of OpenAI's API."""
    calls = [
        {
            "id": id, "type": "function",
            "function": {"name": name, "arguments": told if isinstance(told, str) else json.dumps(told)},
        }
        for id, name, told in message.get("tool_calls", ())
    ]  # fmt: skip
    return {"role": message["role"], "content": "", **message, **({"tool_calls": calls} if calls else {})}


def is_same(held: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a normalized message equals one that was held before.

    Most clients return an answer without its reasoning, which they do not know.
    """
    if "reasoning_content" not in told:
        held = {key: value for key, value in held.items() if key != "reasoning_content"}
    return held == told
