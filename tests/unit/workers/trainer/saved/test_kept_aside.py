"""A trainer that leaves its device between two steps: nothing of it is left there, and nothing is changed."""

import pytest
import torch

from protocol.errors import RunError
from tests.support.allocation import live_bytes
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings  # noqa: F401 - two are fixtures
from workers.models.storages import bytes_of
from workers.trainer.saved.kept_aside import FILE, KeptAside
from workers.trainer.trainer import Trainer


@pytest.fixture
def make(model_directory, settings):  # noqa: F811
    def made(**options):
        told = settings(**options).model_copy(update={"is_colocated": True})
        return Trainer(told, str(model_directory))

    return made


def step(trainer, version):
    train, frames = make_batch(seed=version, train_version=version)
    return trainer.train_step(train, frames)


def tensors(trainer):
    held = trainer.held()
    found = [tensor for model in held.models for tensor in (*model.parameters(), *model.buffers())]
    states = (state for optimizer in held.optimizers for state in optimizer.state.values())
    return found + [value for state in states for value in state.values()]


@pytest.mark.parametrize(
    "options", [{}, {"kl_coefficient": 0.1}, {"baseline": "value", "advantage_scale": "none"}]
)
def test_steps_between_which_the_device_is_left_are_those_of_a_trainer_that_stays(make, tmp_path, options):
    stays, leaves = make(**options), make(**options)
    aside, file = KeptAside(leaves, str(tmp_path)), tmp_path / FILE.format(rank=0)
    for version in range(3):
        assert step(leaves, version) == step(stays, version)
        before = bytes_of(tensors(leaves))
        found = aside.release()
        assert bytes_of(tensors(leaves)) == 0 == found.left_bytes
        assert found.peak_bytes > before, "with the gradients of the step"
        assert file.stat().st_size == before
        aside.take()
        assert not file.exists()
        assert bytes_of(tensors(leaves)) == before
    for one, other in zip(state_of(stays).values(), state_of(leaves).values(), strict=True):
        assert torch.equal(one, other)


def test_weights_moments_and_gradients_are_gone_after_the_trainer_has_left(make, tmp_path):
    trainers = []

    def turn():
        trainers.append(make())
        aside = KeptAside(trainers[0], str(tmp_path))
        step(trainers[0], 0)
        assert aside.release().left_bytes == 0

    found = live_bytes(turn)
    weights = bytes_of(make().model.parameters())
    assert found.peak > 4 * weights, "weights, gradients and two moments, counted where they are allocated"
    assert found.kept < 0.05 * weights


def test_a_file_that_is_gone_ends_the_trainer_in_words(make, tmp_path):
    trainer = make()
    aside = KeptAside(trainer, str(tmp_path))
    aside.release()
    with (tmp_path / FILE.format(rank=0)).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(RunError, match=r"shorter than what was written.*newest checkpoint"):
        aside.take()


def test_a_disk_without_room_is_told_of_with_the_bytes(make, tmp_path):
    (tmp_path / FILE.format(rank=0)).mkdir()
    with pytest.raises(RunError, match=r"takes \d+ bytes of weights and optimizer state"):
        KeptAside(make(), str(tmp_path)).release()


def test_what_a_killed_trainer_of_more_ranks_has_left_is_removed(make, tmp_path):
    for rank in (0, 1, 10):
        (tmp_path / FILE.format(rank=rank)).touch()
    aside = KeptAside(make(), str(tmp_path))
    assert [file.name for file in tmp_path.glob(FILE.format(rank="*"))] == [FILE.format(rank=0)]
    aside.close()
    assert not list(tmp_path.glob(FILE.format(rank="*")))
