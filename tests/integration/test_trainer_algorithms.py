"""Every algorithm, correction and extra model through the trainer itself."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.algorithms import ALGORITHMS
from protocol.errors import ConfigError, RunError
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, on_policy, settings  # noqa: F401 - two are fixtures
from workers.trainer.worker import Trainer, make_trainer

DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"


@pytest.fixture
def make(model_directory, settings):  # noqa: F811
    return lambda **options: Trainer(settings(**options), str(model_directory))


def favour_three(response):
    return float((response == 3).mean() * 16 - 1)


def frequency_of_three(frames):
    tokens, logprobs = (np.frombuffer(f, dtype=t) for f, t in zip(frames[1:], ("<i4", "<f4"), strict=True))
    return np.exp(logprobs[tokens == 3]).mean()


def ended(train, ending):
    return replace(train, items=tuple(item._replace(ending=ending) for item in train.items))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_raises_the_probability_of_rewarded_tokens(make, algorithm):
    trainer = make(algorithm=algorithm, minibatches=2, kl_coefficient=0.0)
    probabilities = []
    for version in range(5):
        train, frames = on_policy(trainer, seed=version, train_version=version, advantage=favour_three)
        probabilities.append(frequency_of_three(frames))
        metrics = trainer.train_step(train, frames)
        assert metrics["skipped_steps"] == 0
        assert all(math.isfinite(value) for value in metrics.values())
    assert probabilities[-1] > 1.2 * probabilities[0]


def test_the_pass_that_trains_gives_the_proximal_logprobs_of_a_single_minibatch(make, monkeypatch):
    outcomes = []
    for has_own_pass in (False, True):
        if has_own_pass:
            for module in ("token_batch", "trainer"):
                monkeypatch.setattr(f"workers.trainer.{module}.needs_own_pass", lambda options: True)
        trainer = make(rejection="sequence", rejection_bounds=(0.8, 1.25), importance_level="sequence")
        metrics = [trainer.train_step(*make_batch(seed=v, train_version=v)) for v in range(2)]
        outcomes.append((metrics, state_of(trainer)))
    (rows, rows_state), (whole, whole_state) = outcomes
    assert rows[0]["tokens/rejected_share"] > 0
    assert [line.keys() for line in rows] == [line.keys() for line in whole]
    for ours, theirs in zip(rows, whole, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    for name, tensor in rows_state.items():
        assert torch.allclose(tensor, whole_state[name], atol=1e-5), name


@pytest.mark.parametrize("proximal", ["rollout", "loglinear"])
def test_on_policy_every_proximal_policy_gives_the_same_step(make, proximal):
    states = []
    for name in ("recompute", proximal):
        trainer = make(proximal=name)
        metrics = trainer.train_step(*on_policy(trainer))
        assert metrics["importance_weight/ess"] == pytest.approx(1, abs=1e-5)
        states.append(state_of(trainer))
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])


def test_old_tokens_move_the_loglinear_centre_towards_the_trained_policy(make):
    ratios = []
    for name in ("recompute", "loglinear", "rollout"):
        trainer = make(proximal=name, importance="none", clip_low=1.0, clip_high=1e9, lr=1e-30)
        train, frames = make_batch(advantage=lambda _: 1.0, logprob=-2.0)
        trainer.policy_version = 1  # so the batch is one version old: half of the way
        train = replace(train, train_version=1)
        ratios.append(-trainer.train_step(train, frames)["loss"])
    assert ratios[0] == pytest.approx(1, abs=1e-6)
    low, high = sorted((ratios[0], ratios[2]))
    assert low < ratios[1] < high


def test_what_is_rejected_and_masked_has_no_gradient_and_is_counted(make):
    trainer = make(rejection="sequence", rejection_metric="k3", rejection_bounds=(0.0, 1e-3))
    metrics = trainer.train_step(*make_batch(logprob=-9.0))
    assert metrics["tokens/rejected_share"] == 1
    assert metrics["grad_norm"] == metrics["loss"] == 0
    trainer = make(mask_truncated=True)
    train, frames = make_batch()
    metrics = trainer.train_step(ended(train, "length"), frames)
    assert metrics["tokens/masked_share"] == 1
    assert metrics["grad_norm"] == metrics["loss"] == 0
    assert trainer.train_step(*make_batch(train_version=1))["grad_norm"] > 0


def test_kl_to_the_reference_holds_the_policy_near_the_initial_model(make):
    distances = {}
    for coefficient in (1e-9, 1.0):
        trainer = make(kl_coefficient=coefficient)
        for version in range(4):
            train, frames = on_policy(trainer, seed=version, train_version=version, advantage=favour_three)
            distances[coefficient] = trainer.train_step(train, frames)["kl_reference"]
            if version == 0:
                assert distances[coefficient] == pytest.approx(0, abs=1e-6)
    assert 0 < distances[1.0] < distances[1e-9] / 2


def test_kl_in_the_reward_holds_it_too(make):
    distances = {}
    for coefficient in (1e-9, 1.0):
        options = {"kl_in": "reward", "kl_estimator": "k1", "baseline": "batch_mean"}
        trainer = make(kl_coefficient=coefficient, advantage_scale="none", **options)
        for version in range(5):
            train, frames = on_policy(trainer, seed=version, train_version=version, advantage=favour_three)
            trainer.train_step(train, frames)
        reference, rows = trainer._reference, []
        for name in state_of(trainer):
            moved = state_of(trainer)[name] - reference.state_dict()[name].full_tensor()
            rows.append(moved.square().sum())
        distances[coefficient] = torch.stack(rows).sum().item()
    assert 0 < distances[1.0] < distances[1e-9]


def test_the_entropy_bonus_raises_entropy(make):
    trainer = make(entropy_coefficient=1.0)
    entropies = [
        trainer.train_step(*make_batch(train_version=v, advantage=lambda _: 0.0))["entropy"] for v in range(4)
    ]
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 0.1


def test_the_critic_learns_what_to_expect_and_survives_a_checkpoint(
    make,
    settings,  # noqa: F811
    model_directory,  # noqa: F811
):
    options = {"algorithm": "ppo", "critic_lr": 3e-3, "lr": 1e-4, "value_clip": 10.0, "gae_lambda": 1.0}

    def outcome(response):  # known from the first token on
        return 1.0 if response[0] < 8 else -1.0

    trainer = make(**options)
    lines = [trainer.train_step(*make_batch(train_version=v, advantage=outcome, groups=8)) for v in range(12)]
    assert lines[0]["critic/explained_variance"] == pytest.approx(0, abs=1e-6)  # all values are 0
    assert lines[-1]["critic/explained_variance"] > 0.5
    trainer.save_checkpoint(12)
    batch = make_batch(train_version=12, advantage=outcome)
    again = make_trainer(settings(**options), str(model_directory))
    assert again.train_step(*batch) == trainer.train_step(*batch)
    state, other = again._critic.model.state_dict(), trainer._critic.model.state_dict()
    assert all(torch.equal(state[name].full_tensor(), other[name].full_tensor()) for name in state)


def test_a_checkpoint_without_a_critic_is_refused_where_one_is_trained(make):
    path = make().save_checkpoint(0)
    with pytest.raises(RunError, match="has no critic"):
        make(algorithm="ppo").load_checkpoint(path)


def test_the_loss_of_the_docs_trains_and_is_shorter_than_thirty_lines(make, tmp_path):
    (text,) = re.findall(r"```python\n# my_loss\.py\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(text.strip().splitlines()) < 30
    (tmp_path / "my_loss.py").write_text(text)
    trainer = make(loss=f"{tmp_path}/my_loss.py:loss")
    probabilities = []
    for version in range(4):
        train, frames = on_policy(trainer, seed=version, train_version=version, advantage=favour_three)
        probabilities.append(frequency_of_three(frames))
        trainer.train_step(train, frames)
    assert probabilities[-1] > 1.2 * probabilities[0]
    with pytest.raises(ConfigError, match="has no `los`"):
        make(loss=f"{tmp_path}/my_loss.py:los")
