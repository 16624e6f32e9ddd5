"""Conversations of rows as chat templates take them: calls, tools and arguments of the template.

Invariant: pure but for the tokenizer, which is asked to render.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from workers.models.tokenizer import (
    CALLS,
    REASONING,
    TOOLS,
    read_arguments,
    tokenizer_writes,
    wants_text,
    with_all_written,
    with_joined_parts,
)


def rendered(tokenizer: Any, row: Mapping[str, Any], talk: Sequence[Any], **how: Any) -> list[int]:
    """Chat messages as token ids, with the row's `tools` and `chat_template_kwargs`.

    Arguments of calls that are written as JSON are told as objects, as in agents' conversations, and as text
    where the template wants text. Raises: ValueError with a message for the user; whatever the chat template
    raises.
    """
    tools, wanted = template_arguments(row)
    if tools:
        wanted = {**wanted, "tools": tools}
    told: list[Any] = [_without_gaps(message, place) for place, message in enumerate(with_joined_parts(talk))]
    if tokenizer.chat_template and all(isinstance(said, dict) and "role" in said for said in told):
        writes, other = partial(tokenizer_writes, tokenizer), "or say it in a message of another role"
        told = [*with_all_written(told, writes, otherwise=other)]
        if any(said.get(CALLS) for said in told) and not writes(CALLS):
            raise ValueError(
                "The chat template leaves out the tool calls of the assistant, so that they would be neither "
                "seen nor trained. Give the tokenizer a chat template that writes them, or write them into "
                "the content of the message."
            )
    how = {**wanted, **how, "tokenize": True, "return_dict": False}
    form = _written if wants_text(tokenizer) else _read
    return tokenizer.apply_chat_template([_with_arguments(message, form) for message in told], **how)


def why_unheard(tokenizer: Any, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What these rows have and the chat template does not write; None if that is nothing."""
    if not tokenizer.chat_template:
        return None
    talks = [row for row in rows if isinstance(row.get("prompt"), list) and row.get("prompt_ids") is None]
    answers = [row["response"] for row in talks if isinstance(row.get("response"), dict)]
    counts = {TOOLS: sum(map(bool, (row.get(TOOLS) for row in talks)))}
    counts[REASONING] = sum(map(bool, (answer.get(REASONING) for answer in answers)))
    told = {TOOLS: "the policy does not learn of them", REASONING: "it is not trained"}
    lost = [name for name, count in counts.items() if count and not tokenizer_writes(tokenizer, name)]
    if not lost:
        return None
    each = "; ".join(
        f"{counts[name]} have `{name}`, which the chat template leaves out, so that {told[name]}"
        for name in lost
    )
    return f"{each}. Give the tokenizer a chat template that writes it, or leave it out of the data."


def template_arguments(row: Mapping[str, Any]) -> tuple[list[Any] | None, dict[str, Any]]:
    """The `tools` and `chat_template_kwargs` of a row. Raises: ValueError if they are malformed."""
    tools, wanted = row.get("tools"), row.get("chat_template_kwargs") or {}
    if isinstance(tools, str) and tools.startswith("["):  # as some data sets have them
        tools = json.loads(tools)
    if not isinstance(wanted, dict) or not (tools is None or isinstance(tools, list)):
        raise ValueError(
            "`tools` is no list of schemas, or `chat_template_kwargs` no mapping. Give them so, or give "
            "these columns other names with `data.columns`."
        )
    return tools, wanted


def _without_gaps(message: Any, place: int) -> Any:
    """The message without values that stand for none: tables have all keys in all messages.

    Raises: ValueError with a message for the user if its calls are no list of mappings.
    """
    if not isinstance(message, dict):
        return message
    kept = {name: value for name, value in message.items() if value is not None}
    calls: Any = kept.get(CALLS)
    if not calls:
        kept.pop(CALLS, None)
    elif not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise ValueError(
            f"Message {place} has the tool calls {calls!r:.80}; expected a list of mappings, each with "
            "`function`. Give them so, or leave them out."
        )
    return kept | ({"content": kept.get("content", "")} if "content" in message else {})


def _with_arguments(message: Any, form: Callable[[object], object]) -> Any:
    """The message with the arguments of its calls in another form."""
    if not isinstance(message, dict) or CALLS not in message:
        return message
    calls: list[Any] = []
    for call in message[CALLS]:
        function = call.get("function")
        holder = function if isinstance(function, dict) else call  # as Mistral and others have them
        if "arguments" in holder:
            holder = {**holder, "arguments": form(holder["arguments"])}
        calls.append({**call, "function": holder} if isinstance(function, dict) else holder)
    return {**message, CALLS: calls}


def _read(arguments: object) -> object:
    """The arguments as a mapping, where they are the JSON of one."""
    value = read_arguments(arguments) if isinstance(arguments, str) else None
    return value if isinstance(value, dict) else arguments


def _written(arguments: object) -> object:
    """The arguments as JSON."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
