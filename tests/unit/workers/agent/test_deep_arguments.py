"""Arguments of tool calls that are nested too deep: a policy that repeats a bracket ends nothing."""

import json

import numpy as np
import pytest

from protocol.messages import Begin, Segment, Turn
from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.episode import EpisodeBudget, HostedEpisode
from workers.agent.rendering.renderer import TemplateRenderer
from workers.models.tokenizer import MAX_ARGUMENT_DEPTH, read_arguments

USER = {"role": "user", "content": "hi"}


def nested(depth: int) -> str:
    """Lists in lists."""
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [MAX_ARGUMENT_DEPTH + 1, 900, 5000])
@pytest.mark.parametrize("shape", ["{0}", '"{0}"'])
def test_a_policy_that_writes_them_is_answered_and_goes_on(depth, shape):
    tokenizer = make_tokenizer()
    limits = EpisodeBudget(3, 20_000, 90_000, "tokens", len(tokenizer))
    played = HostedEpisode(
        Begin(1, 0, 1, 7, 0, 1), b"{}", limits=limits, renderer=TemplateRenderer(tokenizer)
    )
    ask, _ = played.ask(1, {"chat": [USER]})
    text = '<tool_call>{"name": "f", "arguments": ' + shape.format(nested(depth)) + "}</tool_call>"
    sampled = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    segments = (Segment(ask.attempt + 1, 0, len(sampled)),)
    frame = np.asarray(sampled, "<i4").tobytes()
    _, answer = played.take(Turn(1, 0, 1, 0, 0, ask.attempt + 1, "stop", segments), frame)
    (call,) = answer["message"]["tool_calls"]
    assert nested(depth) in call["function"]["arguments"]
    told = {"role": "tool", "tool_call_id": call["id"], "content": "Error: no JSON"}
    again, _ = played.ask(2, {"chat": [USER, answer["message"], told]})
    assert again.keep == ask.given + len(sampled), "it goes on with what was sampled"


def test_messages_that_are_nested_too_deep_are_refused_in_words_and_the_episode_goes_on():
    tokenizer = make_tokenizer()
    limits = EpisodeBudget(3, 20_000, 90_000, "tokens", len(tokenizer))
    played = HostedEpisode(
        Begin(1, 0, 1, 7, 0, 1), b"{}", limits=limits, renderer=TemplateRenderer(tokenizer)
    )
    deep = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deep"):
        played.ask(1, {"chat": [{**USER, "name": deep}]})
    assert played.ask(1, {"chat": [USER]})[0].number == 0


def test_what_people_write_is_read():
    text = json.dumps({"a": [1, {"b": "x"}]})
    assert read_arguments(text) == json.loads(text)
    deepest = nested(MAX_ARGUMENT_DEPTH)
    assert read_arguments(deepest) == json.loads(deepest)
