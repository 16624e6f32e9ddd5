"""What check says of the chat template that an agent's conversations are made by."""

import importlib.util
import re

import pytest

from controller.check.chat_template import template_remarks
from controller.config.models import Config
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.family_tokenizer import make_family_tokenizer


@pytest.fixture
def model(tmp_path):
    def save(thinking="keeps", **options):
        tokenizer = make_tokenizer(thinking)
        if "template" in options:
            tokenizer.chat_template = options["template"]
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text("{}")
        return tmp_path

    return save


def remarks(directory, **agent):
    config = Config.model_validate({"agent": {"function": "a.py:episode"} | agent})
    return list(template_remarks(config, directory))


def test_a_template_that_only_appends_is_a_note(model):
    ((level, key, text),) = remarks(model())
    assert (level, key) == ("note", "agent.history")
    assert "only appends: a user's turn, a tool's turn, two tool turns" in text


@pytest.mark.parametrize(("history", "level"), [("keep", "note"), ("template", "note"), ("refuse", "error")])
def test_a_template_that_strips_thinking_is_named_with_what_becomes_of_it(model, history, level):
    *_, (found, key, text) = remarks(model("strips"), history=history)
    assert (found, key) == (level, "agent.history")
    assert "a thinking turn: the template strips the thinking of earlier turns" in text


@pytest.mark.parametrize(("door", "level"), [(False, "note"), (True, "error")])
def test_without_a_template_only_tokens_can_be_asked_for(model, door, level):
    ((found, key, text),) = remarks(model(template=None), door=door)
    assert (found, key) == (level, "agent.renderer")
    assert "agent.renderer: plain" in text


def test_an_agent_that_asks_at_a_door_by_its_shape_needs_a_template(model, tmp_path):
    (tmp_path / "mine.py").write_text("async def run(data, **extra_kwargs): ...")
    ((found, key, _),) = remarks(model(template=None), function=f"{tmp_path}/mine.py:run")
    assert (found, key) == ("error", "agent.renderer")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("", ""),
        ("    def render(self, messages, tools): return 1 / 0", "Mine.render .* raised ZeroDivisionError"),
        ("    def extend(self, last, messages, tools): return 'x'", "`extend` gave .*a list of token ids"),
        ("    def parse(self, tokens): raise KeyError(tokens[0])", "Mine.parse .* raised KeyError"),
        ("    def __init__(self, tokenizer): exit(3)", "raised SystemExit"),
    ],
)
def test_a_renderer_of_ones_own_that_always_fails_is_named(model, tmp_path, broken, words):
    base = "from workers.agent.rendering.renderer import TemplateRenderer\nclass Mine(TemplateRenderer):\n"
    (tmp_path / "mine.py").write_text(f"{base}    pass\n{broken}\n")
    ((level, key, text),) = remarks(model(), renderer=f"{tmp_path}/mine.py:Mine")
    assert (level, key) == (("error", "agent.renderer") if words else ("note", "agent.history"))
    assert re.search(words, text)
    assert not text.startswith("agent.renderer")


def test_a_renderer_of_ones_own_that_takes_no_arguments_of_a_template_is_named_where_there_are_some(
    model, tmp_path
):
    methods = ("__init__(self, tokenizer)", "render(self, *asked)", "extend(self, *asked)")
    code = "\n".join(f"    def {method}: return None" for method in (*methods, "parse(self, tokens)"))
    (tmp_path / "mine.py").write_text(f"class Mine:\n{code}\n")
    agent = {"function": "a.py:episode", "renderer": f"{tmp_path}/mine.py:Mine"}
    config = Config.model_validate({"agent": agent, "data": {"chat_template_kwargs": {"a": 1}}})
    ((level, key, text),) = template_remarks(config, model())
    assert (level, key) == ("error", "agent.renderer")
    assert "has no method `with_template_kwargs(kwargs)`" in text


@pytest.mark.skipif(importlib.util.find_spec("renderers") is None, reason="needs the extra renderers")
def test_a_renderer_of_the_library_has_verdicts_and_is_held_against_the_template(tmp_path):
    tokenizer = make_family_tokenizer("qwen3")
    tokenizer.chat_template = make_tokenizer().chat_template
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    told = [(key, text) for _, key, text in remarks(tmp_path, renderer="qwen3")]
    (_, appends), (_, strips), (key, otherwise) = told
    assert "two tools at once" in appends
    assert "a thinking turn: the template strips the thinking" in strips
    assert key == "agent.renderer"
    assert "`qwen3` writes a tool's turn" in otherwise
    ((level, key, text),) = remarks(tmp_path, renderer="llama-3")
    assert (level, key) == ("error", "agent.renderer")
    assert text.startswith("the library's `llama-3` cannot be made for this tokenizer")


def test_what_the_template_refuses_is_named(model):
    ((_, _, text),) = remarks(model(template="{{ raise_exception('never') }}"))
    assert "refuses a user's turn" in text


def test_a_directory_without_a_tokenizer_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    ((level, key, text),) = remarks(tmp_path)
    assert (level, key) == ("error", "model.path")
    assert "no tokenizer" in text


def test_nothing_is_asked_where_there_is_nothing_to_try(model, tmp_path, monkeypatch):
    monkeypatch.setattr("controller.check.chat_template.ask", None)
    assert remarks(model(), function="") == []
    assert remarks(tmp_path / "none") == []
    assert remarks(tmp_path, renderer="plain") == []


def test_what_becomes_of_stripped_thinking_by_the_template_is_said(model):
    *_, (_, _, text) = remarks(model("strips"), history="template")
    assert "begins a trajectory of its own" in text
    config = Config.model_validate(
        {"agent": {"function": "a.py:episode", "history": "template"}, "staleness": {"keep_kv": True}}
    )
    *_, (level, key, text) = template_remarks(config, model("strips"))
    assert (level, key) == ("note", "agent.history")
    assert "keep_kv" in text
