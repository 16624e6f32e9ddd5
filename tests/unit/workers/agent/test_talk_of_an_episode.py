"""What an episode says of itself to whoever scores it."""

import json

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from tests.unit.workers.agent.test_episode import episode, turn
from workers.agent.messages import normal, spoken
from workers.agent.rendering.renderer import TemplateRenderer
from workers.agent.worker import too_long_to_score


def test_it_has_the_messages_of_its_first_conversation():
    tokenizer = make_tokenizer()
    played = episode(len(tokenizer), TemplateRenderer(tokenizer), max_tokens=400, max_turn_tokens=40)
    talk = [{"role": "user", "content": "1+1"}]
    assert played.talk() == b""
    ask, _ = played.ask(1, {"chat": talk})
    assert played.talk() == b""
    _, answer = played.take(*turn(ask, [*tokenizer("2")["input_ids"], tokenizer.eos_token_id]))
    told = json.loads(played.talk())
    assert told == [*talk, {"role": "assistant", "content": answer["message"]["content"]}]
    played.ask(2, {"chat": [{"role": "user", "content": "other"}]})
    assert json.loads(played.talk()) == told


def test_one_of_tokens_has_none():
    played = episode()
    ask, _ = played.ask(11, {"tokens": [1, 2, 3]})
    played.take(*turn(ask, [5]))
    assert played.talk() == b""


@pytest.mark.parametrize("arguments", ['{"a": 1}', "no JSON {", ""])
def test_a_tool_call_is_written_as_the_api_has_it(arguments):
    function = {"name": "add", "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    assert spoken(normal(message)) == message


def test_too_much_is_told_with_the_key():
    assert "5,000,000 bytes; agent.max_state_mb allows 4 MB" in too_long_to_score(5_000_000, 4)
