"""Presets of `trainer.algorithm`: what they set, what overrides them, and what the docs say of them."""

from pathlib import Path

import pytest
import torch

from controller.config.models import Config
from controller.config.rules import cross_field_problems
from docs.make_algorithms import preset_table
from protocol.algorithms import ALGORITHMS
from protocol.settings import TrainerSettings
from strategies.outcomes import overlong_penalty
from workers.trainer.losses import kl_estimate, log_ratio

DOCS = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_preset_sets_its_keys_and_none_of_them_contradict_each_other(name):
    config = Config.model_validate({"trainer": {"algorithm": name}})
    for key, value in ALGORITHMS[name].items():
        assert getattr(config.trainer, key) == value
    assert cross_field_problems(config) == []


def test_the_default_is_grpo_and_a_key_that_is_written_out_counts():
    assert TrainerSettings() == TrainerSettings(algorithm="grpo")
    settings = TrainerSettings(algorithm="dapo", clip_high=0.5)
    assert (settings.clip_high, settings.dual_clip) == (0.5, 10.0)


def test_what_a_preset_has_resolved_to_is_read_back_as_it_is():
    config = Config.model_validate_json('{"trainer": {"algorithm": "ppo", "betas": [0.8, 0.9]}}')
    assert config.trainer.betas == (0.8, 0.9)
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_dapo_brings_dynamic_sampling_unless_a_filter_is_named():
    assert Config.model_validate({"trainer": {"algorithm": "dapo"}}).staleness.filter == "zero_variance"
    named = {"trainer": {"algorithm": "dapo"}, "staleness": {"filter": "none"}}
    assert Config.model_validate(named).staleness.filter == "none"
    assert Config().staleness.filter == "none"


@pytest.mark.parametrize(
    ("trainer", "field", "advice"),
    [
        ({"baseline": "none"}, "trainer.advantage_scale", "give batch_std or none"),
        ({"dual_clip": 0.9}, "trainer.dual_clip", "above 1"),
        ({"kl_coefficient": 0.1, "kl_estimator": "k1"}, "trainer.kl_estimator", "give k2 or k3"),
        ({"kl_coefficient": 0.1, "kl_in": "reward"}, "trainer.kl_in", "put the KL into the loss"),
        ({"rejection": "token", "rejection_bounds": (1.1, 2.0)}, "trainer.rejection_bounds", "widen"),
        (
            {"rejection": "token", "rejection_metric": "k3", "rejection_action": "clip"}
            | {"rejection_bounds": (0.0, 1.0)},
            "trainer.rejection_action",
            "mask or drop",
        ),
        ({"rejection": "group", "proximal": "rollout"}, "trainer.rejection", "`recompute`"),
        (
            {"rejection": "sequence", "rejection_action": "drop", "proximal": "loglinear"},
            "trainer.rejection",
            "`recompute`",
        ),
    ],
)
def test_impossible_combinations_are_refused_with_what_would_do(trainer, field, advice):
    ((fields, text),) = cross_field_problems(Config.model_validate({"trainer": trainer}))
    assert fields[0] == field
    assert advice in text


def test_groups_of_one_are_refused_only_where_groups_are_compared():
    tree = {"rollout": {"group_size": 1}, "trainer": {"algorithm": "ppo"}}
    assert cross_field_problems(Config.model_validate(tree)) == []
    tree["trainer"] = {"algorithm": "rloo"}
    assert [fields[0] for fields, _ in cross_field_problems(Config.model_validate(tree))] == [
        "rollout.group_size"
    ]
    tree = {"rollout": {"group_size": 1}, "trainer": {"algorithm": "reinforce"}}
    tree["staleness"] = {"filter": "zero_variance"}
    assert "staleness.filter" in [f[0] for f, _ in cross_field_problems(Config.model_validate(tree))]


def test_the_table_of_presets_in_the_docs_is_that_of_the_code():
    assert preset_table() in DOCS.read_text(), "run: python -m docs.make_algorithms"


def test_the_numeric_examples_of_the_docs_are_what_the_code_computes():
    text = " ".join(DOCS.read_text().split())
    lost = [0 - overlong_penalty(n, max_tokens=100, buffer=0.2, penalty=1.0) for n in (80, 90, 100)]
    assert "responses of 80, 90 and 100 tokens lose {:g}, {:g} and {:g}.".format(*lost) in text
    difference = log_ratio(*torch.tensor([0.4, 0.2], dtype=torch.float64).log()[:, None])
    estimates = [kl_estimate(difference, name).item() for name in ("k1", "k2", "k3")]
    assert "k1 = {:.3f}, k2 = {:.3f}, k3 = {:.3f} nats".format(*estimates) in text
