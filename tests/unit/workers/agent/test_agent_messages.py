"""Chat messages as agents and SDKs write them."""

import pytest

from workers.agent.messages import check_messages, normal

USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": 2}'}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "a", "content": "3"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one chat message"),
        ("hi", "at least one chat message"),
        (None, "at least one chat message"),
        (["hi"], "a mapping with `role`"),
        ([{"role": "robot", "content": "x"}], "the role 'robot'"),
        ([{"content": "x"}], "the role None"),
        ([{"role": "user", "content": 3}], "the content 3; expected text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "Images"),
        ([USER, {"role": "assistant", "content": "x"}], "the assistant's own"),
        ([USER, TOLD], "which no message before it makes"),
        ([USER, {"role": "tool", "content": "3"}], "has no `tool_call_id`"),
        ([USER, {**CALLING, "tool_calls": [CALL, CALL]}, TOLD], "two tool calls of one id"),
        ([USER, {**CALLING, "tool_calls": "f()"}, TOLD], "expected a list"),
        ([USER, {**CALLING, "tool_calls": [{"id": "a"}]}, TOLD], "expected `id` and `function`"),
        ([USER, {**CALLING, "tool_calls": [{"id": "a", "function": {"name": 3}}]}, TOLD], "is no text"),
    ],
)
def test_what_no_policy_could_answer_is_refused_in_words(messages, words):
    with pytest.raises(ValueError, match=words):
        check_messages(messages)


def test_what_sdks_add_or_reorder_does_not_make_another_message():
    plain = check_messages([USER, CALLING, TOLD])
    dumped = {
        **CALLING, "refusal": None, "annotations": [], "audio": None, "function_call": None,
        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"y": 2, "x": 1}}}],
    }  # fmt: skip
    again = check_messages([USER, dumped, {**TOLD, "content": [{"type": "text", "text": "3"}]}])
    assert [normal(message) for message in again] == [normal(message) for message in plain]
    other = {**CALLING, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"x": 2}'}}]}
    assert normal(check_messages([USER, other, TOLD])[1]) != normal(plain[1])


def test_arguments_that_are_no_json_are_compared_as_text():
    broken = {**CALLING, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{x"}}]}
    checked = check_messages([USER, broken, TOLD])
    assert normal(checked[1])["tool_calls"] == [("a", "f", "{x")]


def test_lone_surrogates_are_replaced():
    (message,) = check_messages([{"role": "user", "content": "a\ud800b"}])
    message["content"].encode()
