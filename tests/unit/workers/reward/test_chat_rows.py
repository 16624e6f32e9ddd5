"""Rows with tools: calls are written as the policy is to write them, or the row is refused."""

import json

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.reward.chat_rows import why_unheard
from workers.reward.worker import encode_prompt, encode_response

USER = {"role": "user", "content": "Rain?"}
BARE = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
AS_TEXT = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ 'call ' + call.function.arguments }}{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def calling(arguments, **more):
    function = {"name": "weather", "arguments": arguments}
    calls = [{"type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def encoded(prompt, response, *, template=None):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    row = json.dumps({"prompt": prompt, "response": response}).encode()
    ids = encode_prompt(tokenizer, row, limit=1000, is_supervised=True)
    response_ids = encode_response(tokenizer, row, ids, limit=1000)
    return tokenizer.decode(ids), tokenizer.decode(response_ids)


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome"}'])
def test_arguments_that_are_written_as_text_are_trained_as_an_object(arguments):
    """Most data sets have them as OpenAI's API does: `tojson` would write a text within a text."""
    wanted = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert encoded([USER], calling(arguments))[1] == f"{wanted}<|im_end|>"
    prompt, _ = encoded([USER, calling(arguments), {"role": "tool", "content": "no"}], "No.")
    assert wanted in prompt


@pytest.mark.parametrize("joint", ["+", "~"])
@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome"}'])
def test_a_template_that_wants_text_gets_text(arguments, joint):
    """It fails on an object, or prints it as Python does."""
    template = AS_TEXT.replace("'call ' +", f"'call ' {joint}")
    assert encoded([USER], calling(arguments), template=template)[1] == 'call {"city": "Rome"}<|im_end|>'


def test_arguments_that_are_no_object_stay_as_they_are():
    assert '"arguments": "Rome"' in encoded([USER], calling("Rome"))[1]


def test_calls_that_the_template_leaves_out_are_refused():
    """As Llama 2's and Gemma's: the model would be trained to say nothing, and end."""
    with pytest.raises(ValueError, match="leaves out the tool calls of the assistant"):
        encoded([USER], calling({"city": "Rome"}), template=BARE)
    with pytest.raises(ValueError, match="leaves out the tool calls of the assistant"):
        encoded([USER, calling({"city": "Rome"}), USER], "No.", template=BARE)


def test_keys_without_a_value_are_left_out_of_messages():
    """Tables have every key in every message; templates ask whether `tool_calls` is there (Llama 3.1)."""
    strict = BARE.replace("{{ m.role", "{{ m.tool_calls + '' if 'tool_calls' in m else '' }}{{ m.role")
    strict += "{% if add_generation_prompt %}assistant: {% endif %}"
    for nothing in (None, []):
        talk = [USER | {"tool_calls": nothing, "name": None}]
        assert encoded(talk, "No.", template=strict) == ("user: Rain?<|im_end|>assistant: ", "No.<|im_end|>")
    talk = [USER, calling({"city": "Rome"}, content=None), {"role": "tool", "content": "no"}]
    assert "None" not in encoded(talk, "No.")[0]


def test_calls_that_are_no_list_of_mappings_are_refused_in_words():
    with pytest.raises(ValueError, match=r"Message 1 has the tool calls .*expected a list of mappings"):
        encoded([USER, {"role": "assistant", "content": "", "tool_calls": '[{"function": {}}]'}, USER], "No.")


def test_it_is_said_of_tools_and_reasoning_that_the_template_leaves_them_out():
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    thought = {"role": "assistant", "content": "No.", "reasoning_content": "It is dry."}
    rows = [{"prompt": [USER], "tools": tools}, {"prompt": [USER], "response": thought}, {"prompt": [USER]}]
    assert why_unheard(make_tokenizer(), rows) is None
    tokenizer = make_tokenizer()
    tokenizer.chat_template = BARE
    said = why_unheard(tokenizer, rows) or ""
    assert "1 have `tools`, which the chat template leaves out" in said
    assert "1 have `reasoning_content`, which the chat template leaves out, so that it is not trained" in said
    assert why_unheard(tokenizer, [{"prompt": "Rain?", "tools": tools}, rows[2]]) is None


def test_a_template_that_fails_on_a_made_up_conversation_is_no_fault_of_the_worker():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ 1 // (messages | length - 1) }}"
    assert why_unheard(tokenizer, [{"prompt": [USER], "tools": [{"type": "function"}]}]) is None
