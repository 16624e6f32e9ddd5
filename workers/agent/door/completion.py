"""The policy's answers in the format of OpenAI's chat completions: whole, or as a stream of events.

Invariant: pure; equal answers give equal bytes, so that a retry gets the answer of the first request.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from workers.agent.policy import MODEL

CREATED = 0
"""The time of an answer is constant: an episode that runs again must see the same answers."""
RESPONSE = "resp_"
"""What the ids of answers of the Responses API begin with."""


class DoorAnswer(NamedTuple):
    """One answer of the policy."""

    id: str
    message: dict[str, Any]
    is_cut: bool  # at its token limit
    given: int  # tokens of its context
    sampled: int
    logprobs: Sequence[tuple[str, float]] | None  # text and logprob of each token, if requested


def whole(answer: DoorAnswer) -> bytes:
    """The answer as one body."""
    message = {"refusal": None, **answer.message}
    if answer.message.get("tool_calls") and not answer.message["content"]:
        message["content"] = None
    choice = {"index": 0, "message": message, "finish_reason": _ending(answer), "logprobs": _logprobs(answer)}
    return _json({**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)})


def events(answer: DoorAnswer, *, has_usage: bool) -> bytes:
    """The answer as a stream, which is sent once it is complete."""
    delta = dict(answer.message)
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(delta["tool_calls"])]
    said = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": _logprobs(answer)}
    end = {"index": 0, "delta": {}, "finish_reason": _ending(answer), "logprobs": None}
    head = _head(answer, "chat.completion.chunk")
    chunks: list[dict[str, Any]] = [{**head, "choices": [said]}, {**head, "choices": [end]}]
    if has_usage:
        chunks = [chunk | {"usage": None} for chunk in chunks]
        chunks.append({**head, "choices": [], "usage": _usage(answer)})
    return b"".join(b"data: " + text + b"\n\n" for text in (*map(_json, chunks), b"[DONE]"))


def _head(answer: DoorAnswer, kind: str) -> dict[str, Any]:
    return {"id": answer.id, "object": kind, "created": CREATED, "model": MODEL}


def _ending(answer: DoorAnswer) -> str:
    if answer.is_cut:
        return "length"
    return "tool_calls" if answer.message.get("tool_calls") else "stop"


def _usage(answer: DoorAnswer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.given,
        "completion_tokens": answer.sampled,
        "total_tokens": answer.given + answer.sampled,
    }


def _logprobs(answer: DoorAnswer) -> dict[str, Any] | None:
    content = contents_of(answer)
    return None if content is None else {"content": content, "refusal": None}


def contents_of(answer: DoorAnswer) -> list[dict[str, Any]] | None:
    """Its tokens and their logprobs as OpenAI tells them; None if they were not requested."""
    if answer.logprobs is None:
        return None
    return [
        {"token": text, "logprob": logprob, "bytes": _bytes_of(text), "top_logprobs": []}
        for text, logprob in answer.logprobs
    ]


def _bytes_of(text: str) -> list[int] | None:
    """The bytes of a token's text; None of a token that is only a part of a character."""
    return None if "\ufffd" in text else [*text.encode()]


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
