"""Arguments of the chat template, of a run and of a row: what they do to the messages of an agent."""

import json

import numpy as np
import pytest

from protocol.agents.settings import AgentSettings
from protocol.messages import Begin, Segment, Turn
from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.episode import EpisodeBudget, HostedEpisode, SlowRequest
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.long_texts import QuickRenderer
from workers.agent.rendering.own import own_renderer
from workers.agent.rendering.renderer import PlainRenderer, TemplateRenderer
from workers.reward.worker import encode_prompt

KWARGS = {"enable_thinking": False, "tokenize": True, "add_generation_prompt": False}
"""The latter two are ours to decide."""
NO_THOUGHT = "<think></think>"
TALK = [{"role": "user", "content": "ab"}]
MORE = {"role": "user", "content": "c"}


@pytest.fixture(scope="module")
def tokenizer():
    made = make_tokenizer()
    prompt = "<|im_start|>assistant\n{% endif %}"
    assert made.chat_template.endswith(prompt)
    without = "{% if enable_thinking is defined and not enable_thinking %}" + NO_THOUGHT + "{% endif %}"
    made.chat_template = made.chat_template.removesuffix("{% endif %}") + without + "{% endif %}"
    return made


@pytest.fixture
def renderer(tokenizer):
    return TemplateRenderer(tokenizer)


def read(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=False)


def episode(renderer, row):
    limits = EpisodeBudget(turns=9, turn_tokens=100, tokens=10**6, tokens_limit="context", vocabulary=None)
    return HostedEpisode(Begin(1, 0, 1, 7, 0, 1), json.dumps(row).encode(), limits=limits, renderer=renderer)


def test_a_prompt_of_an_agent_is_rendered_as_a_single_turn_of_that_row_is(tokenizer, renderer):
    row = {"prompt": TALK, "chat_template_kwargs": KWARGS}
    _, (frame,) = episode(renderer, row).ask(1, {"chat": TALK})
    single = encode_prompt(tokenizer, json.dumps(row).encode(), limit=10**6)
    assert np.frombuffer(frame, "<i4").tolist() == single
    assert read(tokenizer, single).endswith(f"assistant\n{NO_THOUGHT}")
    _, (other,) = episode(renderer, {}).ask(1, {"chat": TALK})
    assert NO_THOUGHT not in read(tokenizer, np.frombuffer(other, "<i4").tolist()), (
        "other rows have their own"
    )


def test_turns_that_go_on_have_them_too(tokenizer, renderer):
    played = episode(QuickRenderer(renderer), {"chat_template_kwargs": KWARGS})
    ask, _ = played.ask(1, {"chat": TALK})
    tokens = [*tokenizer("yes", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    turn = Turn(1, 0, 1, ask.number, ask.member, ask.attempt + 1, "stop", (Segment(1, 0, len(tokens)),))
    _, answer = played.take(turn, np.asarray(tokens, "<i4").tobytes())
    ask, (frame,) = played.ask(2, {"chat": [*TALK, answer["message"], MORE]})
    assert ask.keep > 0
    assert read(tokenizer, np.frombuffer(frame, "<i4").tolist()).endswith(
        f"c<|im_end|>\n<|im_start|>assistant\n{NO_THOUGHT}"
    )


def test_a_long_text_has_them_too(tokenizer, renderer):
    played = episode(QuickRenderer(renderer), {"chat_template_kwargs": KWARGS})
    with pytest.raises(SlowRequest) as raised:
        played.ask(1, {"chat": [{"role": "user", "content": "long " * 10_000}]})
    placed = raised.value.place(TemplateRenderer(tokenizer))
    assert read(tokenizer, placed.given[-60:]).endswith(NO_THOUGHT)


class Own:
    """A renderer of a user's that knows nothing of a template's arguments."""

    def __init__(self, tokenizer):
        pass

    def render(self, messages, tools):
        return [1]

    def extend(self, last, messages, tools):
        return [1]

    def parse(self, tokens):
        return {"content": ""}


class Knowing(Own):
    """One that does."""

    def with_template_kwargs(self, kwargs):
        other = Knowing(None)
        other.render = lambda messages, tools: [5, 6]
        return other if kwargs.get("is_good", True) else "none"


def test_renderers_that_use_no_template_refuse_them_in_words(tokenizer):
    with pytest.raises(ValueError, match=r"agent.renderer: `plain` does not use the chat template"):
        episode(PlainRenderer(tokenizer), {"chat_template_kwargs": KWARGS})
    own = own_renderer(f"{__name__}:Own", tokenizer)
    with pytest.raises(ValueError, match="has no method `with_template_kwargs"):
        episode(own, {"chat_template_kwargs": KWARGS})
    episode(own, {"chat_template_kwargs": {}})


def test_a_renderer_of_ones_own_may_take_them(tokenizer):
    own = own_renderer(f"{__name__}:Knowing", tokenizer)
    ask, _ = episode(own, {"chat_template_kwargs": KWARGS}).ask(1, {"chat": TALK})
    assert ask.given == 2
    with pytest.raises(ValueError, match=r"`with_template_kwargs` gave 'none'.*has no render, extend, parse"):
        own.with_template_kwargs({"is_good": False})


def test_the_renderer_that_a_configuration_asks_for_takes_them(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    made = make_renderer(str(tmp_path), AgentSettings(function="a.py:f"))
    written = made.with_template_kwargs(KWARGS).render(TALK, None)
    assert read(tokenizer, written).endswith(NO_THOUGHT)
