"""What a trainer reports of the tokens that people will read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.settings import TrainerSettings
from tests.unit.workers.trainer.test_given_tokens import agent_batch, model_directory, settings
from workers.trainer.batch import read_batch
from workers.trainer.token_batch import (
    CorrectedTokens,
    ForwardPass,
    correct,
    correction_metrics,
    corrections_of,
    make_token_batch,
)
from workers.trainer.trainer import Trainer

__all__ = ["model_directory"]
SAMPLED = 11  # tokens of an episode of that batch


def numbers(found: CorrectedTokens) -> list[np.ndarray]:
    return [np.frombuffer(frame, "<f4") for frame in found.frames]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_logprobs_and_weights_are_those_of_the_asked_trajectories_before_the_step(
    model_directory, tmp_path, minibatches
):
    options = {"minibatches": minibatches, "importance": "truncate", "importance_cap": 1.5}
    train, frames = agent_batch()
    asked = Trainer(settings(tmp_path, **options), str(model_directory))
    asked.train_step(_asking(train, 1), frames)
    every = Trainer(settings(tmp_path, **options), str(model_directory))
    every.train_step(_asking(train, 0, 1), frames)
    nobody = Trainer(settings(tmp_path, **options), str(model_directory))
    nobody.train_step(train, frames)
    assert nobody.corrections == CorrectedTokens()
    assert asked.corrections.places == tuple((1, member, SAMPLED) for member in range(3))
    logprobs, weights = numbers(asked.corrections)
    for few, many in zip((logprobs, weights), numbers(every.corrections), strict=True):
        assert np.allclose(few, many[3 * SAMPLED :], atol=1e-6)  # the second group of the batch
    ratio = np.exp(logprobs - np.float32(-2.8))
    assert np.allclose(weights, np.minimum(ratio, 1.5), rtol=1e-4)
    assert len(set(np.round(logprobs, 4))) > SAMPLED


def _asking(train, *groups):
    return type(train)(train.train_version, train.items, samples=groups)


def _flat(batch):
    train, frames = batch
    read = read_batch(train, frames)
    return train, make_token_batch(
        read, [range(len(read.tokens))], ForwardPass(None, None, None, None),
        settings=settings(Path("run")), device=torch.device("cpu"),
    )  # fmt: skip


def test_what_is_left_out_weighs_nothing_and_what_is_no_number_is_told_as_such():
    train, flat = _flat(agent_batch(groups=1, size=1))
    flat.seen_logprobs[:] = -1.0
    flat.seen_logprobs[2] = torch.nan
    flat.seen_logprobs[3] = 1e-7  # rounding
    flat.importance_weights[:] = 1.2
    flat.loss_factors[:] = 1.0
    flat.loss_factors[4] = 0.0  # rejected
    flat.token_weights[5] = 0.0  # masked
    logprobs, weights = numbers(
        corrections_of(_asking(train, 0), flat, options=TrainerSettings(device="cpu"))
    )
    assert weights[[4, 5]].tolist() == [0, 0]
    assert weights[[0, 10]].tolist() == [np.float32(1.2)] * 2
    assert np.isnan(logprobs[2])
    assert logprobs[3] == 0


def test_a_taper_goes_by_the_advantage_of_each_token():
    _, flat = _flat(agent_batch(groups=1, size=1))
    flat.advantages[:] = torch.tensor([-1.0, 2.0, -3.0] * SAMPLED)[:SAMPLED]
    flat.proximal_logprobs[:] = flat.rollout_logprobs + np.log(0.5)
    places = torch.tensor([5, 1, 3])
    correct(flat, places, flat.proximal_logprobs[places], options=TrainerSettings(importance="taper"))
    assert flat.importance_weights[places].tolist() == pytest.approx([0.5, 1.0, 0.5])
    assert flat.importance_weights.count_nonzero() == 3


class TwoAlike:
    """Two ranks that have filled in the same."""

    size = 2

    def sum(self, tensor):
        tensor *= 2
        return tensor


def test_ranks_that_share_rows_count_their_tokens_once():
    train, flat = _flat(agent_batch(groups=1, size=1))
    filled = ("seen_logprobs", "importance_weights", "loss_factors")
    for name in filled:
        getattr(flat, name)[:] = 0.75
    options = TrainerSettings(device="cpu", ranks=2, sequence_ranks=2)
    correction_metrics(flat, TwoAlike(), options=options, train_version=train.train_version)
    for name in filled:
        assert getattr(flat, name).tolist() == [0.75] * SAMPLED
