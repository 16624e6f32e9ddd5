"""Texts that are like what a renderer uses itself, or that no tokenizer takes."""

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.conversations import Conversations
from workers.agent.messages import check_messages
from workers.agent.rendering.renderer import Past, TemplateRenderer, message_of

TOKENIZER = make_tokenizer()
USER = {"role": "user", "content": "hi"}


def tools(words, **properties):
    function = {"name": "f", "description": words, "parameters": {"type": "object", "properties": properties}}
    return [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    "schemas",
    [tools("gives a stand-in for a stand-in-1"), tools("adds", **{"stand-in": {"type": "string"}})],
)
def test_a_turn_goes_on_alike_whatever_the_tools_say(schemas):
    renderer = TemplateRenderer(TOKENIZER)
    answer = {"role": "assistant", "content": "ok"}
    for new in ([USER], [{"role": "user", "content": "a stand-in"}]):
        given = renderer.extend(None, new, schemas, past=Past([1], [2], [USER, answer]))
        whole = renderer.render([USER, answer, *new], schemas)
        assert TOKENIZER.decode(whole).endswith(TOKENIZER.decode(given))
        assert TOKENIZER.decode(given).startswith("<|im_end|>"), TOKENIZER.decode(given)


def test_a_call_by_the_name_of_a_stand_in_is_answered_like_others():
    call = {"id": "stand-in", "type": "function", "function": {"name": "stand-in", "arguments": "{}"}}
    talk = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    told = {"role": "tool", "tool_call_id": "stand-in", "content": "2"}
    renderer = TemplateRenderer(TOKENIZER)
    given = TOKENIZER.decode(renderer.extend(None, [told], None, past=Past([1], [2], talk)))
    assert TOKENIZER.decode(renderer.render([*talk, told], None)).endswith(given)
    assert given.startswith("<|im_end|>")


@pytest.mark.parametrize("history", ["keep", "template"])
@pytest.mark.parametrize(
    "call", ['{"name": "\\ud83d", "arguments": {}}', '{"name": "f", "arguments": {"x": "\\ud83d"}}']
)
def test_half_a_character_in_a_call_is_another_one_where_history_is_rendered(call, history):
    renderer, schemas = TemplateRenderer(TOKENIZER), tools("half \ud83d")
    talk = Conversations(renderer, first=0, step=1, attempt=0, most=64, history=history)
    messages = check_messages([USER])
    placed = talk.place(messages, schemas, is_trained=True)
    transcript = talk.begin(is_trained=True)
    transcript.open(placed.given)
    sampled = TOKENIZER(f"<tool_call>{call}</tool_call>", add_special_tokens=False)["input_ids"]
    transcript.answered([*sampled, TOKENIZER.eos_token_id])
    answer = message_of(renderer.parse([*sampled, TOKENIZER.eos_token_id]), transcript.tokens)
    transcript.held(messages, answer, schemas)
    told = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "no"}
    assert talk.place(check_messages([USER, answer, told]), schemas, is_trained=True).given
    other = {"role": "user", "content": "shorter"}
    edited = talk.place(check_messages([other, answer, told]), schemas, is_trained=True)
    assert edited.transcript is None
    assert edited.given
