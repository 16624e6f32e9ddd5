"""Figures of a train step that are means over tokens, though its optimizer steps have unequally many."""

import pytest
import torch

from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings  # noqa: F401 - fixtures
from workers.trainer import losses
from workers.trainer.worker import Trainer

STEPS = [
    {"loss": 1.0, "entropy": 2.0, "clip_ratio": 0.5, "tokens": 10.0},
    {"loss": 3.0, "entropy": 1.0, "clip_ratio": 0.0, "tokens": 30.0},
]


def test_numbers_of_steps_count_once_for_each_step_and_those_of_tokens_once_for_each_token():
    found = losses.means(STEPS, ("loss", "entropy", "clip_ratio"))
    assert found == {"loss": 2.0, "entropy": 1.25, "clip_ratio": 0.125}
    assert losses.means([], ("loss", "entropy")) == {"loss": 0.0, "entropy": 0.0}
    assert losses.means([STEPS[0] | {"tokens": 0.0}], ("entropy",)) == {"entropy": 0.0}


def test_a_train_step_reports_shares_of_all_its_tokens(model_directory, settings, monkeypatch):  # noqa: F811
    """Against the sums of what the losses were given and have given back."""
    sums = dict.fromkeys(("tokens", "entropy", "clip_ratio", "kl_reference", "critic/clip_ratio"), 0.0)
    of_policy, of_values, sizes = losses.policy_loss, losses.value_loss, []

    def policy_loss(tokens, loss):
        found = of_policy(tokens, loss)
        sizes.append(len(tokens.logprobs))
        given = (sizes[-1], tokens.entropy.sum(), found.clipped, found.kl)
        for name, number in zip(("tokens", "entropy", "clip_ratio", "kl_reference"), given, strict=True):
            sums[name] += float(number)
        return found

    def value_loss(*arguments, **named):
        found = of_values(*arguments, **named)
        sums["critic/clip_ratio"] += float(found.clipped)
        return found

    monkeypatch.setattr(losses, "policy_loss", policy_loss)
    monkeypatch.setattr(losses, "value_loss", value_loss)
    torch.manual_seed(0)
    made = settings(
        algorithm="ppo", minibatches=4, kl_coefficient=0.1, lr=0.03, critic_lr=0.03, clip_low=0.02,
        clip_high=0.02, value_clip=0.01, proximal="recompute", max_tokens_per_microbatch=4096,
    )  # fmt: skip
    trainer = Trainer(made, str(model_directory))
    trainer.train_step(*make_batch())  # else reference and policy are one
    sizes.clear()
    sums.update(dict.fromkeys(sums, 0.0))
    metrics = trainer.train_step(*make_batch(seed=1, train_version=1))
    assert len(sizes) == 4
    assert len(set(sizes)) > 1, "mini-batches of equal size tell nothing"
    assert sums["tokens"] == metrics["tokens"]
    for name in sums.keys() - {"tokens"}:
        assert 0 < metrics[name] == pytest.approx(sums[name] / sums["tokens"], rel=1e-6), name
