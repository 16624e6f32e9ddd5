"""Chat messages as agents write them: what is refused, and when two of them are the same.

Invariants: pure; a message that passes `check_messages` holds text only; two messages that differ only in
what SDKs add or leave out (nulls, key order of arguments) are equal after `normal`.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

ROLES = ("system", "developer", "user", "assistant", "tool")
KEPT = ("role", "name", "content", "reasoning_content", "tool_call_id")
MAX_CHARS = 16 << 20  # of all messages together
MAX_TAKEN = 4  # requests of an episode whose messages are known again: as many conversations grow at once
MAX_ARGUMENT_DEPTH = 64  # levels of JSON in the arguments of a tool call


class _Checked(NamedTuple):
    """Messages of a request that was taken."""

    told: list[Any]  # as they came
    messages: list[dict[str, Any]]
    calls: frozenset[str]  # ids of all tool calls in them
    chars: int


NOTHING = _Checked([], [], frozenset(), 0)


class CheckedHistory:
    """Checks the requests of one episode: of each only what is new behind one that was taken before.

    Whoever asks hands each list over: it is kept, and changed by nobody.
    """

    def __init__(self) -> None:
        self._taken: deque[_Checked] = deque(maxlen=MAX_TAKEN)

    def check(self, messages: object) -> list[dict[str, Any]]:
        """As `check_messages`."""
        before = [one for one in self._taken if _begins_with(messages, one.told)]
        known = max(before, key=lambda one: len(one.told), default=NOTHING)
        found = _check(messages, known)
        if known is not NOTHING:
            self._taken.remove(known)  # what repeats that one repeats this one in part
        if isinstance(messages, list):
            self._taken.append(found)
        return found.messages


def _begins_with(messages: object, told: list[Any]) -> bool:
    return isinstance(messages, list) and len(messages) > len(told) and messages[: len(told)] == told


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages of one request. Raises: ValueError in words if no policy could answer them."""
    return _check(messages, NOTHING).messages


def check_answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """What an endpoint has answered, as agents get it. Raises: ValueError, TypeError if it is no message."""
    return _check_message({**message, "role": "assistant"}, 0)


def _check(messages: object, known: _Checked) -> _Checked:
    """What messages are that begin with those that are known. Raises: ValueError in words."""
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
    """The content of the message at this place: a string, or a list of text parts joined; "" of None.

    Raises: ValueError in words if it is something else.
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
    """The same with other characters in the place of halves of one, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _text_part(part: object) -> str | None:
    """The text of one part; None if it is none."""
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
    """Every answer of a tool needs the call that it answers; the ids of all calls. Raises: ValueError.

    `before`: the ids of the calls in the `first` messages, which stand before these.
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
    """The same with parts of its strings replaced; `change` maps what is found to what stands for it."""
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
    """What counts of a checked message when histories are compared."""
    kept = {key: message[key] for key in KEPT if message.get(key)}
    calls = [
        (call["id"], call["function"]["name"], read_arguments(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return kept | ({"tool_calls": calls} if calls else {})


def spoken(message: Mapping[str, Any]) -> dict[str, Any]:
    """A normal message as OpenAI's API has it."""
    calls = [
        {
            "id": id, "type": "function",
            "function": {"name": name, "arguments": told if isinstance(told, str) else json.dumps(told)},
        }
        for id, name, told in message.get("tool_calls", ())
    ]  # fmt: skip
    return {"role": message["role"], "content": "", **message, **({"tool_calls": calls} if calls else {})}


def is_same(held: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether a normal message is the one that was held before.

    Most clients give an answer back without its reasoning, which they do not know.
    """
    if "reasoning_content" not in told:
        held = {key: value for key, value in held.items() if key != "reasoning_content"}
    return held == told


def read_arguments(text: str) -> Any:
    """As JSON, or the text if it is none, or nested so deep that a policy has only repeated a bracket."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    level: list[Any] = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    return text


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
