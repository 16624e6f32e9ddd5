"""Translates the input of OpenAI's Responses API into chat messages.

Invariants: pure; reasoning, text and calls of the assistant in sequence are one message, as the policy said
them in one turn; an item that cannot be told in a message is refused, and never left out silently.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workers.agent.door.refusal import DoorRefusal

ROLES = ("user", "assistant", "system", "developer")
TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts of a message, and the fields that hold their text."""
THOUGHTS = {"reasoning_text": "text", "summary_text": "text"}
"""Kinds of parts of reasoning, likewise."""
Messages = list[dict[str, Any]]


def messages_of(told: object, instructions: str) -> Messages:
    """The messages of `input` and `instructions`. Raises: DoorRefusal."""
    messages: Messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(told, str):
        return [*messages, {"role": "user", "content": told}]
    if not isinstance(told, list) or not told:
        raise _refusal("input", f"is {told!r:.80}; expected text, or a list of at least one item.")
    for place, item in enumerate(told):
        where = f"input[{place}]"
        kind = _kind(item, where)
        if not isinstance(kind, str) or kind not in ITEMS:
            raise _refusal(where, f"is of the type {kind!r:.40}; expected one of {', '.join(ITEMS)}.")
        ITEMS[kind](messages, item, where)
    return messages


def _kind(item: Any, where: str) -> object:
    """The type of an item; that of a message may be left out. Raises: DoorRefusal."""
    if not isinstance(item, dict):
        raise _refusal(where, f"is {item!r:.80}; expected an object, such as a message.")
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "item_reference" or (kind is None and "id" in item):
        raise _refusal(
            where, f"refers to the item {item.get('id')!r:.60}; nothing is stored here. Send the item itself."
        )
    return kind


def _message(messages: Messages, item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in ROLES:
        other = " A tool's answer is an item of the type function_call_output." if role == "tool" else ""
        raise _refusal(where, f"has the role {role!r:.40}; expected one of {', '.join(ROLES)}.{other}")
    text = _text(item.get("content"), TEXTS, f"{where}.content")
    if role == "assistant":
        _turn(messages, "content")["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _reasoning(messages: Messages, item: Mapping[str, Any], where: str) -> None:
    """Add thoughts; those of other models, which are encrypted, have no text to be read."""
    content, summary = item.get("content") or [], item.get("summary") or []
    text = _text(content, THOUGHTS, f"{where}.content") or _text(summary, THOUGHTS, f"{where}.summary")
    if text:
        _turn(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = text


def _call(messages: Messages, item: Mapping[str, Any], where: str) -> None:
    id, name, arguments = (_told(item, field, where) for field in ("call_id", "name", "arguments"))
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    _turn(messages).setdefault("tool_calls", []).append(call)


def _output(messages: Messages, item: Mapping[str, Any], where: str) -> None:
    text = _text(item.get("output"), TEXTS, f"{where}.output")
    messages.append({"role": "tool", "tool_call_id": _told(item, "call_id", where), "content": text})


ITEMS: dict[str, Callable[[Messages, Mapping[str, Any], str], None]] = {
    "message": _message, "reasoning": _reasoning, "function_call": _call, "function_call_output": _output,
}  # fmt: skip
"""What each type of item adds to the messages before it."""


def _turn(messages: Messages, *before: str) -> dict[str, Any]:
    """The assistant's message to add to: the last one, unless it has one of these fields already."""
    if not messages or messages[-1]["role"] != "assistant" or any(name in messages[-1] for name in before):
        messages.append({"role": "assistant"})
    return messages[-1]


def _told(item: Mapping[str, Any], field: str, where: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise _refusal(f"{where}.{field}", f"is {value!r:.80}; expected text.")
    return value


def _text(content: object, kinds: Mapping[str, str], where: str) -> str:
    """The text of a content or output, or of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refusal(where, f"is {content!r:.80}; expected text, or a list of text parts.")
    return "".join(_part(part, kinds, f"{where}[{place}]") for place, part in enumerate(content))


def _part(part: Any, kinds: Mapping[str, str], where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(kinds[kind]) if isinstance(kind, str) and kind in kinds else None
    if not isinstance(text, str):
        raise _refusal(
            where, f"is {part!r:.80}; expected one of {', '.join(kinds)} with its text. Images, files and "
            "audio are not supported."
        )  # fmt: skip
    return text


def _refusal(where: str, text: str) -> DoorRefusal:
    return DoorRefusal(400, f"`{where}` {text}", param=where)
