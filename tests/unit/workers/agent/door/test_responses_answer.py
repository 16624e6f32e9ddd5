"""Answers in the format of the Responses API, which the types of the package `openai` take as they are."""

import json

import pydantic
import pytest

from protocol.settings import SamplingSettings
from workers.agent.door.completion import DoorAnswer
from workers.agent.door.responses_answer import response_events, whole_response
from workers.agent.door.responses_input import messages_of
from workers.agent.door.responses_request import read_response_request

types = pytest.importorskip(
    "openai.types.responses", reason="the package openai is not installed (pip install -e '.[test]')"
)
REQUEST = json.dumps(
    {
        "input": "?",
        "instructions": "Add.",
        "tools": [{"type": "function", "name": "add"}],
        "metadata": {"a": "b"},
    }
).encode()
REPEATED = read_response_request(REQUEST, SamplingSettings()).response
CALLS = [
    {"id": id, "type": "function", "function": {"name": "add", "arguments": '{"a":  2}'}} for id in ("a", "b")
]
MESSAGES = {
    "text": {"content": "five"},
    "nothing": {"content": ""},
    "thoughts": {"content": "five", "reasoning_content": "hm"},
    "nothing but thoughts": {"content": "", "reasoning_content": "hm"},
    "calls": {"content": "", "tool_calls": CALLS},
    "all": {"content": "so", "reasoning_content": "hm", "tool_calls": CALLS},
}


def answer(message, *, is_cut=False, logprobs=None):
    return DoorAnswer("resp_7-0-1-0-2", {"role": "assistant", **message}, is_cut, 9, 3, logprobs)


def events_of(told):
    """The events of a stream, each of its type."""
    events = []
    for place, text in enumerate(response_events(told, REPEATED).decode().removesuffix("\n\n").split("\n\n")):
        name, data = text.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert (name, event["sequence_number"]) == (f"event: {event['type']}", place)
        events.append(event)
    return events


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("logprobs", [None, [("a", -0.5), ("\u00e9", -1.0)]])
def test_every_object_is_one_of_openais(message, is_cut, logprobs):
    told = answer(message, is_cut=is_cut, logprobs=logprobs)
    whole = json.loads(whole_response(told, REPEATED))
    response = types.Response.model_validate(whole)
    assert not response.model_extra
    assert response.status == ("incomplete" if is_cut else "completed")
    assert (response.incomplete_details is not None) == is_cut
    assert response.usage.total_tokens == 12
    event_type = pydantic.TypeAdapter(types.ResponseStreamEvent)
    events = events_of(told)
    for event in events:
        assert {*(event_type.validate_python(event).model_extra or ())} <= {"name"}
    assert events[-1] == {
        "type": f"response.{response.status}", "response": whole, "sequence_number": len(events) - 1
    }  # fmt: skip
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_items_of_an_answer_come_back_as_the_message_that_it_was(message):
    items = json.loads(whole_response(answer(message), REPEATED))["output"]
    (back,) = messages_of(items, "")
    assert {"content": "", **back} == {"role": "assistant", **message}


def test_a_stream_tells_each_item_in_its_order():
    kinds = [event["type"].removeprefix("response.") for event in events_of(answer(MESSAGES["all"]))]
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
    call = ["function_call_arguments.delta", "function_call_arguments.done"]
    items = [[one.format("reasoning_text") for one in part], [one.format("output_text") for one in part]]
    told = [
        kind for item in (*items, call, call) for kind in ("output_item.added", *item, "output_item.done")
    ]
    assert kinds == ["created", "in_progress", *told, "completed"]


def test_an_empty_text_has_no_delta():
    """From an empty one, pydantic-ai would make a part of the answer, and no longer ask again."""
    kinds = [event["type"] for event in events_of(answer(MESSAGES["nothing"]))]
    assert "response.output_text.done" in kinds
    assert "response.output_text.delta" not in kinds


def test_of_an_answer_that_was_cut_the_text_is_incomplete():
    items = json.loads(whole_response(answer(MESSAGES["all"], is_cut=True), REPEATED))["output"]
    assert [item["status"] for item in items] == ["completed", "incomplete", "completed", "completed"]
