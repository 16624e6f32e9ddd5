"""What becomes of the items of a request to the Responses API."""

import pytest

from workers.agent.door.refusal import DoorRefusal
from workers.agent.door.responses_input import messages_of

USER = {"role": "user", "content": "2+3?"}
CALL = {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"a":  2}', "id": "fc_1"}
CALLED = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a":  2}'}}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "5"}
TOLD = {"role": "tool", "tool_call_id": "a", "content": "5"}


def said(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(*texts, **more):
    return {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": one} for one in texts],
        **more,
    }


def test_text_is_what_the_user_says_and_instructions_are_the_systems():
    assert messages_of("2+3?", "") == [USER]
    assert messages_of([USER], "Add.") == [{"role": "system", "content": "Add."}, USER]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_messages_are_told_with_the_text_of_all_their_parts(role):
    parts = [{"type": "input_text", "text": "2+"}, {"type": "output_text", "text": "3"}]
    item = {"type": "message", "role": role, "content": [*parts, {"type": "refusal", "refusal": "?"}]}
    assert messages_of([item], "") == [{"role": role, "content": "2+3?"}]


def test_what_the_assistant_says_in_sequence_is_one_turn():
    items = [USER, thought("h", "m"), said("so"), CALL, {**CALL, "call_id": "b"}, OUTPUT, said("five"), USER]
    assert messages_of(items, "") == [
        USER,
        {
            "role": "assistant", "reasoning_content": "hm", "content": "so",
            "tool_calls": [CALLED, CALLED | {"id": "b"}],
        },
        TOLD,
        {"role": "assistant", "content": "five"},
        USER,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("items", "turns"),
    [
        ([said("one"), said("two")], 2),
        ([thought("one"), thought("two")], 2),
        ([said("one"), thought("two"), said("three")], 2),
        ([CALL, thought("two")], 2),
        ([CALL, said("one")], 1),
        ([said(""), CALL], 1),
        ([thought(), CALL], 1),
    ],
)
def test_a_turn_ends_where_its_own_kind_of_item_comes_again(items, turns):
    told = messages_of([USER, *items], "")[1:]
    assert [message["role"] for message in told] == ["assistant"] * turns


def test_thoughts_are_read_from_a_summary_only_if_they_are_not_told_themselves():
    summary = [{"type": "summary_text", "text": "short"}]
    told = messages_of([thought("long", summary=summary), said("a")], "")
    assert told[0]["reasoning_content"] == "long"
    told = messages_of([{"type": "reasoning", "summary": summary}, said("a")], "")
    assert told[0]["reasoning_content"] == "short"


def test_thoughts_that_nobody_can_read_are_no_message():
    encrypted = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"}
    assert messages_of([USER, encrypted], "") == [USER]


BAD = [
    (None, "`input` is None; expected text, or a list of at least one item."),
    ([], r"`input` is \[\]; expected text"),
    ({"role": "user"}, "`input` is {'role': 'user'}; expected text"),
    ([USER, "hi"], r"`input\[1\]` is 'hi'; expected an object"),
    ([{}], r"`input\[0\]` is of the type None; expected one of message, reasoning, function_call"),
    ([{"type": [1]}], r"`input\[0\]` is of the type \[1\]; expected one of"),
    ([{"type": "web_search_call"}], r"`input\[0\]` is of the type 'web_search_call'; expected one of"),
    ([{"type": "item_reference", "id": "msg_1"}], "refers to the item 'msg_1'; nothing is stored here. Send"),
    ([{"id": "msg_1"}], "refers to the item 'msg_1'"),
    ([{"role": "root", "content": ""}], r"`input\[0\]` has the role 'root'; expected one of user, assistant"),
    ([{"role": "tool", "content": ""}], "A tool's answer is an item of the type function_call_output"),
    ([{"role": ["user"], "content": ""}], "has the role"),
    ([{"role": "user"}], r"`input\[0\].content` is None; expected text, or a list of text parts"),
    ([{"role": "user", "content": [3]}], r"`input\[0\].content\[0\]` is 3; expected one of input_text"),
    ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "Images, files and audio"),
    ([{"role": "user", "content": [{"type": {}, "text": "x"}]}], "Images, files and audio"),
    ([{"role": "user", "content": [{"type": "input_text"}]}], "with its text"),
    ([thought() | {"content": [{"type": "text", "text": "x"}]}], "expected one of reasoning_text, summ"),
    ([CALL | {"call_id": None}], r"`input\[0\].call_id` is None; expected text"),
    ([CALL | {"name": 3}], r"`input\[0\].name` is 3; expected text"),
    ([CALL | {"arguments": {}}], r"`input\[0\].arguments` is {}; expected text"),
    ([OUTPUT | {"output": 5}], r"`input\[0\].output` is 5; expected text, or a list of text parts"),
    ([{"type": "function_call_output", "output": "5"}], r"`input\[0\].call_id` is None; expected text"),
]  # fmt: skip


@pytest.mark.parametrize(("told", "words"), BAD)
def test_an_item_that_cannot_be_told_is_refused_by_its_place(told, words):
    with pytest.raises(DoorRefusal, match=words) as refused:
        messages_of(told, "")
    assert refused.value.status == 400
    assert f"`{refused.value.param}`" in str(refused.value)


def test_an_output_may_be_parts():
    parts = [{"type": "input_text", "text": "5"}]
    assert messages_of([CALL, OUTPUT | {"output": parts}], "")[1] == TOLD
