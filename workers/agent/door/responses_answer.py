"""The policy's answers in the format of OpenAI's Responses API: whole, or as a stream of events.

Invariant: pure; equal answers to equal requests give equal bytes, so that a retry gets the first one's.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workers.agent.door.completion import CREATED, RESPONSE, DoorAnswer, contents_of
from workers.agent.policy import MODEL

Item = dict[str, Any]


def whole_response(answer: DoorAnswer, repeated: Mapping[str, Any]) -> bytes:
    """The answer as one body. `repeated`: fields of the request that it repeats."""
    return json.dumps(_ended(answer, repeated)).encode()


def response_events(answer: DoorAnswer, repeated: Mapping[str, Any]) -> bytes:
    """The answer as a stream, which is sent once it is complete."""
    ended = _ended(answer, repeated)
    begun = ended | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    told: list[Item] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for place, item in enumerate(ended["output"]):
        told += ({**event, "output_index": place} for event in _of_item(item))
    told.append({"type": f"response.{ended['status']}", "response": ended})
    return b"".join(_sent({**event, "sequence_number": place}) for place, event in enumerate(told))


def _sent(event: Item) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _ended(answer: DoorAnswer, repeated: Mapping[str, Any]) -> Item:
    return {
        "id": answer.id, "object": "response", "created_at": CREATED, "model": MODEL,
        "status": _status(answer),
        "incomplete_details": {"reason": "max_output_tokens"} if answer.is_cut else None,
        "error": None, "background": False, "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}}, "truncation": "disabled", **repeated,
        "output": _output(answer), "usage": _usage(answer),
    }  # fmt: skip


def _status(answer: DoorAnswer) -> str:
    return "incomplete" if answer.is_cut else "completed"


def _usage(answer: DoorAnswer) -> Item:
    return {
        "input_tokens": answer.given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.given + answer.sampled,
    }


def _output(answer: DoorAnswer) -> list[Item]:
    """The items of the answer: its reasoning, its text, its calls. There is a text where there is no call."""
    message, id = answer.message, answer.id.removeprefix(RESPONSE)
    reasoning, calls = message.get("reasoning_content"), message.get("tool_calls") or ()
    items: list[Item] = []
    if reasoning:
        thoughts = [{"type": "reasoning_text", "text": reasoning}]
        told = {"id": f"rs_{id}", "type": "reasoning", "summary": [], "content": thoughts}
        items.append({**told, "status": "completed"})
    if message["content"] or not calls:
        text = {
            "type": "output_text", "text": message["content"], "annotations": [],
            "logprobs": contents_of(answer) or [],
        }  # fmt: skip
        told = {"id": f"msg_{id}", "type": "message", "role": "assistant", "content": [text]}
        items.append({**told, "status": _status(answer)})
    for place, call in enumerate(calls):
        told = {"id": f"fc_{id}-{place}", "type": "function_call", "call_id": call["id"]}
        items.append({**told, **call["function"], "status": "completed"})
    return items


def _of_item(item: Item) -> Iterator[Item]:
    """The events of one item."""
    field = "arguments" if item["type"] == "function_call" else "content"
    begun = "" if field == "arguments" else []
    yield {"type": "response.output_item.added", "item": item | {"status": "in_progress", field: begun}}
    if field == "arguments":
        kind, told = "response.function_call_arguments", {"item_id": item["id"]}
        yield {"type": f"{kind}.delta", **told, "delta": item["arguments"]}
        yield {"type": f"{kind}.done", **told, "name": item["name"], "arguments": item["arguments"]}
    else:
        yield from _of_part(item["content"][0], {"item_id": item["id"], "content_index": 0})
    yield {"type": "response.output_item.done", "item": item}


def _of_part(part: Item, told: Item) -> Iterator[Item]:
    """The events of a text or of thoughts. `told`: what places them."""
    kind = f"response.{part['type']}"
    begun = part | {"text": ""} | ({"logprobs": []} if "logprobs" in part else {})
    more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    yield {"type": "response.content_part.added", **told, "part": begun}
    if part["text"]:
        yield {"type": f"{kind}.delta", **told, "delta": part["text"], **more}
    yield {"type": f"{kind}.done", **told, "text": part["text"], **more}
    yield {"type": "response.content_part.done", **told, "part": part}
