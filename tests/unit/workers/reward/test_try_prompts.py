"""Rows are encoded before a run as a reward worker would encode them."""

import json

import pytest

from controller.check.data import Sample
from controller.check.prompts import prompt_remarks
from controller.config.models import Config
from tests.support.small_project import make_project
from workers.reward.try_prompts import answer


@pytest.fixture
def model(tmp_path, monkeypatch):
    make_project(tmp_path)
    monkeypatch.setattr("controller.check.prompts.ask", lambda module, question, *, limit_s: answer(question))
    return tmp_path / "model"


def test_a_tokenizer_with_more_tokens_than_the_model_is_found(model):
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": 2}))
    sample = Sample("data", "rows.jsonl", {}, rows=[{"prompt": "1+1"}, {"prompt_ids": [0, 1]}])

    def remarks():
        return [*prompt_remarks(Config(), [sample], model, is_thorough=True)]

    [(level, key, text)] = remarks()
    assert (level, key) == ("note", "model.path")
    assert "the model at `model.path` has 2 tokens" in text
    assert "resize_token_embeddings" in text
    sample.rows.pop()
    [(level, key, _)] = remarks()
    assert (level, key) == ("error", "model.path")


def test_tools_that_the_chat_template_leaves_out_are_noted(model):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    row = {"prompt": [{"role": "user", "content": "1+1"}], "tools": tools}
    sample = Sample("data", "rows.jsonl", {}, rows=[row])
    found = [*prompt_remarks(Config(), [sample], model, is_thorough=True)]
    text = "of the first 1 rows of rows.jsonl, 1 have `tools`, which the chat template leaves out"
    assert [(level, key) for level, key, said in found if said.startswith(text)] == [("note", "model.path")]
