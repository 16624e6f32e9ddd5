"""What is read out of a request to the Responses API, field by field."""

import json

import pytest

from protocol.settings import SamplingSettings
from workers.agent.door.chat_request import read_request
from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.request_fields import SAMPLED
from workers.agent.door.responses_request import CONSTRAINTS, NO_EFFECT, ONLY, read_response_request

OWN = SamplingSettings(temperature=1.0, top_p=0.5)
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


def read(*, is_refusing=True, **fields):
    body = json.dumps({"input": "?", **fields}).encode()
    return read_response_request(body, OWN, is_refusing=is_refusing)


def nested(name, value):
    outer, _, inner = name.partition(".")
    return {outer: {inner: value}} if inner else {outer: value}


def test_a_field_that_is_null_is_as_if_it_were_not_there():
    names = [*SAMPLED, *ONLY, *CONSTRAINTS, *NO_EFFECT, "stop", "tools", "max_output_tokens", "include"]
    names += ["stream", "model", "instructions", "metadata", "previous_response_id", "conversation", "prompt"]
    for name in names:
        assert read(**nested(name, None)) == read(), name


def test_it_is_the_question_that_a_chat_request_would_be():
    asked = read(
        instructions="Add.", tools=[TOOL], tool_choice="none", max_output_tokens=7, stream=True,
        temperature=1, include=["reasoning.encrypted_content", "message.output_text.logprobs"],
    )  # fmt: skip
    function = {"name": "add", "parameters": {"type": "object"}, "strict": True}
    body = {
        "messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "?"}],
        "tools": [{"type": "function", "function": function}], "tool_choice": "none",
        "max_completion_tokens": 7, "stream": True, "temperature": 1, "logprobs": True,
    }  # fmt: skip
    chat = read_request(json.dumps(body).encode(), OWN)
    assert asked.question == chat.question
    assert [*asked.question["tools"][0]["function"]] == ["name", "parameters", "strict"]
    assert (asked.is_stream, asked.has_logprobs, asked.disobeyed) == (True, True, ())
    assert (asked.param, chat.param) == ("input", "messages")


def test_the_answer_repeats_what_was_obeyed():
    told = read(metadata={"a": "b"}, tool_choice="required", tools=[TOOL], is_refusing=False).response
    assert (told["metadata"], told["tool_choice"], told["top_p"]) == ({"a": "b"}, "auto", 0.5)
    assert told["tools"] == [{**TOOL, "description": None}]
    assert read().response["tools"] == []


def test_what_has_no_effect_may_be_told():
    fields = {"reasoning": {"summary": "auto"}, "store": True, "user": "me", "service_tier": "auto"}
    fields |= {
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
        "background": False,
    }
    assert read(**fields, prompt_cache_key="k", max_tool_calls=3, text={}) == read()


@pytest.mark.parametrize(
    ("name", "value"),
    [("tool_choice", "required"), ("tool_choice", {"type": "function", "name": "add"}),
     ("parallel_tool_calls", False), ("reasoning.effort", "low"), ("text.verbosity", "low"),
     ("text.format", {"type": "json_object"})],
)  # fmt: skip
def test_a_constraint_on_the_answer_is_refused_or_ignored_as_the_run_says(name, value):
    with pytest.raises(DoorRefusal, match=f"`{name}` is .*other_sampling: ignore") as refused:
        read(**nested(name, value))
    assert (refused.value.param, refused.value.code) == (name, "unsupported_value")
    asked = read(**nested(name, value), is_refusing=False)
    assert (asked.disobeyed, asked.reads_calls) == ((name,), True)


def test_another_distribution_is_refused_or_ignored_as_the_run_says():
    with pytest.raises(DoorRefusal, match=r"`temperature` is 0; this run samples with 1\.0"):
        read(temperature=0)
    assert read(temperature=0, is_refusing=False).disobeyed == ("temperature",)


BAD = [
    ({"input": None}, "`input` is missing; expected text, or a list of items"),
    ({"input": None, "messages": []}, "A request with `messages` goes to /v1/chat/completions"),
    ({"previous_response_id": "resp_1"}, "Nothing is stored here: send the whole conversation as `input`"),
    ({"conversation": {"id": "conv_1"}}, "Nothing is stored here: send the whole conversation as `input`"),
    ({"prompt": {"id": "pmpt_1"}}, "Nothing is stored here: send its text as `instructions`"),
    ({"background": True}, "`background` is True; expected False"),
    ({"truncation": "auto"}, "`truncation` is 'auto'; expected 'disabled'"),
    ({"top_logprobs": 3}, "`top_logprobs` is 3; expected 0"),
    ({"max_output_tokens": 0}, "`max_output_tokens` is 0; expected a whole number of at least 1"),
    ({"max_tokens": 7}, "`max_tokens` is no field that is supported here. Its name is `max_output_tokens`"),
    ({"instructions": ["a"]}, r"`instructions` is \['a'\]; expected text"),
    ({"text": "json"}, "`text` is 'json'; expected a JSON object"),
    ({"reasoning": {"wish": 1}}, "`reasoning.wish` is no field that is supported here. Leave it out"),
    ({"chat_template_kwargs": {}}, "set `data.chat_template_kwargs`, or a column"),
    ({"include": "all"}, "`include` is 'all'; expected a list of texts"),
    ({"stream": 1}, "`stream` is 1; expected true or false"),
    ({"tools": {}}, "`tools` is {}; expected a list of functions"),
    ({"tools": [3]}, r"`tools\[0\]` is 3; expected {\"type\": \"function\", \"name\""),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, r"`tools\[0\]` is .*expected {\"type\""),
    ({"tools": [TOOL, TOOL | {"parameters": "x"}]}, r"`tools\[1\]` is .*expected {\"type\""),
    ({"tools": [{"type": "web_search"}]}, r"`tools\[0\]` is of the type 'web_search'; expected 'function'"),
    ({"tools": [TOOL | {"defer_loading": True}]}, r"`tools\[0\].defer_loading` is no field of a tool"),
    ({"tool_choice": 3}, "`tool_choice` is 3"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), BAD)
def test_what_cannot_be_obeyed_is_refused_by_its_name_in_any_run(fields, words):
    with pytest.raises(DoorRefusal, match=words) as refused:
        read(**fields, is_refusing=False)
    assert refused.value.status == 400
    assert f"`{refused.value.param}`" in str(refused.value)


def test_a_chat_request_to_the_wrong_place_is_told_the_right_one():
    with pytest.raises(DoorRefusal, match="A request with `input` goes to /v1/responses"):
        read_request(json.dumps({"input": "?"}).encode(), OWN)
