"""What no trainer could learn from is refused when the configuration is read, and what it can is not."""

import pytest
from pydantic import ValidationError

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from protocol.settings import TrainerSettings

GREEDY = {"sampling": {"temperature": 0.0}}


def problems(**sections):
    return cross_field_problems(Config.model_validate(sections))


def test_greedy_responses_are_refused_where_they_would_be_trained():
    ((fields, text),) = problems(rollout=GREEDY)
    assert fields == ("rollout.sampling.temperature",)
    assert text.startswith("is 0, at which")
    assert "set evaluation.sampling.temperature" in text
    ((_, text),) = problems(rollout=GREEDY, trainer={"algorithm": "sft"})
    assert "sft trains the policy's own distribution" in text


def test_greedy_responses_are_allowed_in_evaluation_and_for_a_trainer_of_ones_own():
    evaluated = {"every_steps": 5, "data": {"test": {"path": "test.jsonl"}}, **GREEDY}
    assert problems(evaluation=evaluated) == []
    assert problems(rollout=GREEDY, trainer={"engine": "mine.py:Trainer"}) == []
    assert problems(rollout={"sampling": {"temperature": 0.01}}) == []


@pytest.mark.parametrize("betas", [(0.9, 1.0), (0.9, -0.1), (1.5, 0.9), (-0.1, 0.9)])
def test_betas_that_adamw_refuses_are_refused_before(betas):
    with pytest.raises(
        ValidationError, match=r"expected two numbers from 0 to below 1, such as \[0.9, 0.95\]"
    ):
        TrainerSettings(betas=betas)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.0)])
def test_other_betas_are_taken(betas):
    assert TrainerSettings(betas=betas).betas == betas
    assert TrainerSettings.model_validate({"betas": list(betas)}).betas == betas


@pytest.mark.parametrize(
    ("key", "value", "own"),
    [
        ("baseline", "batch_mean", "none"),
        ("baseline", "group_mean", "none"),
        ("baseline", "value", "none"),
        ("advantage_scale", "batch_std", "none"),
        ("advantage_scale", "group_std", "none"),
        ("loss", "ppo", "likelihood"),
        ("loss", "reinforce", "likelihood"),
    ],
)
def test_a_supervised_run_compares_its_responses_with_nothing(key, value, own):
    ((fields, text),) = problems(trainer={"algorithm": "sft", key: value})
    assert fields == (f"trainer.{key}", "trainer.algorithm")
    assert text.startswith(f"is {value}, but sft")
    assert text.endswith(f"leave it {own}.")


@pytest.mark.parametrize(
    "trainer", [{}, {"loss": "mine.py:loss"}, {"loss": "likelihood", "baseline": "none"}]
)
def test_a_supervised_run_may_have_a_loss_of_ones_own(trainer):
    assert problems(trainer={"algorithm": "sft", **trainer}) == []
