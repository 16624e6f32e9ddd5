"""Turns that end in another token than the tokenizer's, as those of Gemma and Phi do."""

import json

import pytest

from protocol.agents.settings import AgentSettings
from tests.support.chat_tokenizer import make_tokenizer
from workers.agent.rendering.chosen import make_renderer
from workers.agent.rendering.renderer import TemplateRenderer
from workers.models.tokenizer import load_tokenizer

USER = {"role": "user", "content": "hi"}
OWN = """
from workers.agent.rendering.renderer import TemplateRenderer as Mine
"""


@pytest.fixture
def directory(tmp_path):
    """A model whose engines stop at `<|im_end|>`, which is not the end token of its tokenizer."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.add_special_tokens({"eos_token": "<eos>"})
    tokenizer.save_pretrained(tmp_path)
    ends = tokenizer.convert_tokens_to_ids(["<eos>", "<|im_end|>"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize("end", ["<|im_end|>", "<eos>"])
@pytest.mark.parametrize("name", ["template", "plain", "own.py:Mine"])
def test_the_token_at_which_an_engine_stops_is_no_part_of_what_was_said(directory, monkeypatch, name, end):
    monkeypatch.chdir(directory)
    renderer = make_renderer(str(directory), AgentSettings(function="a.py:f", renderer=name))
    tokenizer = load_tokenizer(str(directory))
    said = tokenizer("two", add_special_tokens=False)["input_ids"]
    turn = [*said, tokenizer.convert_tokens_to_ids(end)]
    assert renderer.text(turn) == renderer.parse(turn).content == "two"


@pytest.mark.parametrize("name", ["template", "own.py:Mine"])
def test_the_end_of_a_turn_is_not_written_a_second_time(directory, monkeypatch, name):
    monkeypatch.chdir(directory)
    renderer = make_renderer(str(directory), AgentSettings(function="a.py:f", renderer=name))
    tokenizer = load_tokenizer(str(directory))
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    turn = [*tokenizer("two", add_special_tokens=False)["input_ids"], end]
    prompt, answer = renderer.render([USER], None), {"role": "assistant", "content": "two"}
    assert [*prompt, *turn, *renderer.extend(end, [USER], None)] == renderer.render(
        [USER, answer, USER], None
    )


SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} <|im_end|>{% endif %}{% endfor %}"
)
"""As Llama 2 writes an answer: with a space before its end."""


def test_the_end_of_a_turn_is_not_written_a_second_time_behind_a_space():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = SPACED
    renderer = TemplateRenderer(tokenizer)
    given = tokenizer.decode(renderer.extend(tokenizer.eos_token_id, [USER], None))
    assert given == "[INST] hi [/INST]"
    cut = tokenizer.convert_tokens_to_ids("o")
    assert tokenizer.decode(renderer.extend(cut, [USER], None)) == " <|im_end|>[INST] hi [/INST]"


def test_an_end_that_a_template_writes_only_later_stays():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = SPACED.replace(" <|im_end|>", "").replace("[/INST]", "<|im_end|>")
    given = TemplateRenderer(tokenizer).extend(tokenizer.eos_token_id, [USER], None)
    assert tokenizer.decode(given) == "[INST] hi <|im_end|>"
