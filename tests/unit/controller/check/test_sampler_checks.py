"""What a sampler cannot go with is one sentence before anything starts."""

import pytest

from controller.check.problems import check
from controller.config.models import Config
from controller.config.rules import cross_field_problems


def config(**sections) -> Config:
    staleness = {"sampler": "similar_length", **sections.pop("staleness", {})}
    return Config.model_validate({"staleness": staleness, **sections})


def problems(**sections) -> list[str]:
    return [
        text for fields, text in cross_field_problems(config(**sections)) if fields[0] == "staleness.sampler"
    ]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"algorithm": "sft"}}, "trainer.algorithm is sft, whose responses are given"),
        ({"agent": {"function": "mine.py:play"}}, "agent.function lets environments make the prompts"),
        ({"trainer": {"baseline": "batch_mean"}}, "trainer.baseline compares rewards with their mean"),
        ({"trainer": {"advantage_scale": "batch_std"}}, "trainer.advantage_scale divides advantages"),
    ],
)
def test_what_a_sampler_cannot_go_with_is_said_in_one_sentence(sections, words):
    (found,) = problems(**sections)
    assert words in found
    assert found.endswith("or leave staleness.sampler in_order.")
    assert not problems(**sections, staleness={"sampler": "in_order"})


def test_a_sampler_goes_with_streaming():
    assert not problems(trainer={"streaming": True})


def notes(**sections) -> list[str]:
    return [f.text for f in check(config(**sections)) if f.level == "note" and f.field == "staleness.sampler"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"path": "mine.py:prompts"}, "data is a function"),
        ({"path": "a.jsonl", "epochs": 1}, "data.epochs is 1"),
    ],
)
def test_prompts_that_never_come_again_are_noted(data, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = notes(data=data, trainer={"loss_aggregation": "sequence_mean"})
    assert [text for text in found if text.startswith(words)]


def test_a_loss_that_weighs_tokens_by_their_batch_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = notes(data={"path": "a.jsonl"}, trainer={"loss_aggregation": "token_mean"})
    assert found.startswith("trainer.loss_aggregation is token_mean")
    assert not notes(data={"path": "a.jsonl"}, trainer={"loss_aggregation": "sequence_mean"})
