"""What a policy has written, however malformed."""

import pytest

from workers.agent.rendering.tool_calls import READERS, parse
from workers.reward.kinds.cpu_limit import within


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ('{"name": "f", "arguments": {"a": [1, 2]}}', ("f", '{"a": [1, 2]}')),
        ('{"arguments": {"a": 1}, "name": "f"}', ("f", '{"a": 1}')),
        ('{"name": "f"}', ("f", "{}")),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', ("f", '{"a": 1}')),
        ('{"name": "f", "arguments": {"a": 1,}}', ("f", '{"a": 1,}}')),
        (
            '{"name": "f", "arguments":',
            ("f", '{"name": "f", "arguments":'),
        ),  # cut off: no call without arguments
        ('{"name": "f", "x": {"arguments": {"a": 9}}, "arguments": {"a": 1}}', ("f", '{"a": 1}')),
        ('{"name": "f", "x": {"arguments": {"a": 9}}}', ("f", "{}")),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}', ("f", '{"a": 2}')),
        ("nonsense", ("", "nonsense")),
        ("[1, 2]", ("", "[1, 2]")),
        ("", ("", "")),
        ("[" * 100_000, ("", "[" * 100_000)),
    ],
)
def test_every_block_is_a_call_whose_arguments_are_what_stands_there(block, expected):
    parsed = parse(f"<tool_call>{block}</tool_call>", READERS["hermes"])
    assert parsed.calls == (expected,)
    assert parsed.content == ""
    assert parsed.unreadable == (not expected[0] or expected[1] in (block, '{"a": 1,}}'))


def test_an_unclosed_call_is_one_too_and_text_without_calls_is_untouched():
    assert parse('<tool_call>{"name": "f"}', READERS["hermes"]).calls == (("f", "{}"),)
    assert parse(" two \n", READERS["hermes"]).content == " two \n"
    assert parse("<tool_call>x</tool_call>", READERS["none"]).content == "<tool_call>x</tool_call>"


@pytest.mark.parametrize("blank", ["\n", " ", "\n\t"])
def test_an_answer_of_white_space_alone_is_read_in_one_pass(blank):
    text = blank * 300_000
    parsed = within(30.0, lambda: parse(text, READERS["hermes"]))
    assert parsed is not None, "a policy that repeats itself stops the event loop of its worker"
    assert (parsed.content, parsed.reasoning, parsed.calls) == (text, "", ())
    assert parse(f"{blank}<think>a</think>b", READERS["none"]).reasoning == "a"
