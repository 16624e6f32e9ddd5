"""Rollout logprobs that are no numbers: counted, and left out of the loss and of every mean."""

import numpy as np
import pytest
import torch

from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch, on_policy
from tests.unit.workers.trainer.test_trainer import model_directory as model_directory
from tests.unit.workers.trainer.test_trainer import settings as settings
from workers.trainer.losses import log_ratio
from workers.trainer.worker import Trainer

LOST = (3, 40)  # places of the tokens in the batch


def with_lost(frames, values=(-np.inf, np.nan)):
    logprobs = np.frombuffer(frames[2], dtype="<f4").copy()
    logprobs[list(LOST)] = values
    return (*frames[:2], logprobs.tobytes())


def naive(tokens):
    """A user's loss that looks at the rollout policy itself."""
    return -(tokens.logprobs - tokens.rollout_logprobs).exp() * tokens.advantages


OPTIONS = [
    {},
    {"minibatches": 2},
    {"proximal": "rollout"},
    {"proximal": "loglinear"},
    {"loss": "gspo", "proximal": "rollout"},
    {"importance_level": "sequence"},
    {"importance_level": "sequence", "importance": "taper"},
    {"rejection": "sequence", "rejection_action": "drop"},
    {"loss": f"{__file__}:naive"},
    {"streaming": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values())))
def test_tokens_without_a_logprob_are_counted_and_the_step_is_taken(
    options,
    model_directory,
    settings,
):
    trainer = Trainer(settings(**options), model_directory)
    train, frames = on_policy(trainer)
    before = {name: tensor.clone() for name, tensor in state_of(trainer).items()}
    metrics = trainer.train_step(train, with_lost(frames))
    assert metrics["nonfinite_log_ratios"] == 2
    assert metrics["skipped_steps"] == 0
    assert metrics["mismatch_kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["importance_weight/mean"] == pytest.approx(1, abs=1e-5)
    after = state_of(trainer)
    assert all(torch.isfinite(tensor).all() for tensor in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in after)


def test_their_weight_in_the_loss_is_nothing(model_directory, settings, monkeypatch):
    trainer = Trainer(settings(), model_directory)
    train, frames = on_policy(trainer)
    seen = []

    def watched(tokens):
        seen.append((tokens.token_weights, log_ratio(tokens.logprobs, tokens.proximal_logprobs)))
        return -tokens.advantages * tokens.logprobs

    trainer._loss = watched
    trainer.train_step(train, with_lost(frames))
    weights = torch.cat([weights for weights, _ in seen])
    assert int((weights == 0).sum()) == 2
    assert weights.sum().item() == pytest.approx(1 - 2 / len(weights))  # the divisor counts them


def test_means_of_the_mismatch_are_those_of_the_other_tokens(model_directory, settings):
    first, second = (Trainer(settings(), model_directory) for _ in range(2))
    train, frames = make_batch()
    whole = first.train_step(train, frames)
    lost = second.train_step(train, with_lost(frames))
    count = whole["tokens"]
    assert lost["tokens"] == count
    for name in ("mismatch_kl", "importance_weight/mean"):
        assert lost[name] * (count - 2) == pytest.approx(
            whole[name] * count - removed(first, train, frames, name), rel=1e-4
        )


def removed(trainer, train, frames, name):
    """What the two tokens contribute to the sum of a metric, at the weights before the step."""
    before = Trainer(trainer._settings, trainer._model_directory)
    _, exact = on_policy(before)
    places = list(LOST)
    rollout = torch.tensor(np.frombuffer(frames[2], dtype="<f4")[places].copy())
    d = torch.tensor(np.frombuffer(exact[2], dtype="<f4")[places].copy()) - rollout
    each = d.exp().clamp(max=2.0) if name.startswith("importance") else torch.expm1(d) - d
    return each.sum().item()
