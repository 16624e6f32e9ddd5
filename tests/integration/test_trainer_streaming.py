"""A batch that is trained in parts equals the same batch in one piece, whatever the algorithm."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.errors import ConfigError, RemoteError, RunError
from protocol.messages import Train, TrainAhead
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings  # noqa: F401 - two are fixtures
from workers.trainer.worker import Trainer, begin_checkpoint, make_trainer

GROUPS = 6
PARTS = (([4], [0, 2], [1, 3, 5]), ([5, 1, 3, 0, 2], [4]), ([3], [5], [1], [0], [2], [4]))


@pytest.fixture
def make(model_directory, settings):  # noqa: F811
    return lambda **options: Trainer(settings(**options), str(model_directory))


def in_parts(train, frames, order):
    """The orders that bring a batch group by group, and the frames of each."""
    items = train.items
    sizes = [
        [4 * (item.prompt_tokens if kind == 0 else item.response_tokens) for item in items]
        for kind in range(3)
    ]
    pieces = [
        [frame[end - size : end] for size, end in zip(some, np.cumsum(some), strict=True)]
        for frame, some in zip(frames, sizes, strict=True)
    ]
    orders, said = [], []
    for number, groups in enumerate(order, 1):
        places = [place for group in groups for place, item in enumerate(items) if item.group == group]
        said += [items[place] for place in places]
        payload = tuple(b"".join(kind[place] for place in places) for kind in pieces)
        if number < len(order):
            orders.append((TrainAhead(train.train_version, tuple(items[p] for p in places)), payload))
        else:
            ahead = len(said) - len(places)
            orders.append((Train(train.train_version, tuple(said), ahead=ahead), payload))
    return orders


def train_in_parts(trainer, train, frames, order):
    *before, (last, payload) = in_parts(train, frames, order)
    for part, some in before:
        trainer.train_ahead(part, some)
    return trainer.train_step(last, payload)


def batch_of(version):
    train, frames = make_batch(seed=version, train_version=version, groups=GROUPS, size=3)
    items = tuple(
        item._replace(ending="length") if place % 5 == 0 else item for place, item in enumerate(train.items)
    )
    return replace(train, items=items), frames


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss_aggregation": "sequence_mean", "loss": "gspo", "mask_truncated": True},
        {"loss_aggregation": "group_mean", "proximal": "loglinear", "entropy_coefficient": 0.01},
        {"algorithm": "dr_grpo", "proximal": "rollout", "kl_coefficient": 0.1},
        {"algorithm": "rloo", "rejection": "group", "rejection_bounds": (0.6, 0.9)},
        {"algorithm": "cispo", "rejection": "sequence", "rejection_action": "drop"},
        {"advantage_scale": "none", "kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    ],
)
def test_a_batch_in_parts_learns_what_the_whole_does(make, options):
    options = {"lr": 1e-3, "adam_eps": 1e-5, **options}
    whole, parts = make(**options), make(streaming=True, **options)
    for version, order in enumerate(PARTS):
        train, frames = batch_of(version)
        expected = whole.train_step(train, frames)
        found = train_in_parts(parts, train, frames, order)
        assert found.keys() == expected.keys()
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6, rel=0)
        assert found == pytest.approx(expected, abs=1e-6, rel=1e-5)
        assert parts.seconds["ahead"] > 0
    ours, theirs = state_of(parts), state_of(whole)
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) < 1e-6
    assert expected["grad_norm"] > 0
    assert 0 < expected.get("tokens/rejected_share", 0.5) < 1 or options.get("rejection") is None


def test_weights_stay_and_can_be_saved_while_a_part_is_ahead(make, settings, model_directory):  # noqa: F811
    trainer = make(streaming=True)
    before = state_of(trainer)
    train, frames = batch_of(0)
    (part, some), (last, payload) = in_parts(train, frames, PARTS[1])
    trainer.train_ahead(part, some)
    assert all(torch.equal(tensor, before[n]) for n, tensor in state_of(trainer).items())
    trainer.save_checkpoint(0)
    trainer.train_step(last, payload)
    successor = make_trainer(settings(streaming=True), str(model_directory))  # it gets the whole
    successor.train_step(train, frames)
    ours, theirs = state_of(trainer), state_of(successor)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


def test_a_part_that_is_not_finite_skips_the_step_and_the_third_writes_out_the_whole_batch(make, tmp_path):
    trainer = make(streaming=True)
    for version in range(3):
        train, frames = make_batch(train_version=version, groups=GROUPS, size=3)
        bad = tuple(i._replace(outcome=math.inf) if i.group == 4 else i for i in train.items)
        if version < 2:
            before = state_of(trainer)
            metrics = train_in_parts(trainer, replace(train, items=bad), frames, PARTS[0])
            assert metrics["skipped_steps"] == 1
            assert all(torch.equal(tensor, before[n]) for n, tensor in state_of(trainer).items())
        else:
            with pytest.raises(RunError, match="3 optimizer steps in a row"):
                train_in_parts(trainer, replace(train, items=bad), frames, PARTS[0])
    with np.load(tmp_path / "not_finite" / "version_2" / "batch.npz") as file:
        assert len(file["prompt_lengths"]) == GROUPS * 3
        assert len(file["advantages"]) == sum(item.response_tokens for item in train.items)
        assert file["token_weights"].sum() == pytest.approx(1, abs=1e-5)


def test_a_batch_that_counts_on_other_parts_is_refused(make):
    trainer = make(streaming=True)
    train, frames = batch_of(0)
    (part, some), (last, payload) = in_parts(train, frames, PARTS[1])
    with pytest.raises(RemoteError, match="15 trajectories that were sent ahead; 0 were"):
        trainer.train_step(last, payload)
    trainer.train_ahead(part, some)
    with pytest.raises(RemoteError, match="0 trajectories that were sent ahead; 15 were"):
        trainer.train_step(train, frames)
    with pytest.raises(RemoteError, match="version 1 came to a trainer at 0"):
        trainer.train_ahead(replace(part, train_version=1), some)


class WholeOnly:
    """A user's trainer that offers what every trainer must, and no more."""

    def __init__(self, worker_settings, directory):
        self._whole = Trainer(worker_settings, directory)
        self.ranks, self.policy_version = self._whole.ranks, self._whole.policy_version

    def train_step(self, train, frames):
        return self._whole.train_step(train, frames)

    def tensors_for_publish(self):
        return self._whole.tensors_for_publish()

    def save_checkpoint(self, policy_version):
        return self._whole.save_checkpoint(policy_version)

    def load_checkpoint(self, path):
        self._whole.load_checkpoint(path)


def test_a_trainer_that_takes_whole_batches_only_is_refused_where_they_come_in_parts(
    settings,  # noqa: F811
    model_directory,  # noqa: F811
):
    engine = f"{__file__}:WholeOnly"
    trainer = make_trainer(settings(engine=engine), str(model_directory))
    assert begin_checkpoint(trainer, 0)().name == "step_0"  # it is written at once
    with pytest.raises(ConfigError, match="has no method `train_ahead`"):
        make_trainer(settings(engine=engine, streaming=True), str(model_directory))
