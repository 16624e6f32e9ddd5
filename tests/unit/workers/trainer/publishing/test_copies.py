"""Copies of versions while the trainer goes on: no optimizer step tears one, no forward pass waits for it."""

import asyncio
import threading

import pytest
import torch

from protocol.errors import RunError
from protocol.messages import PolicyPublished, Ready, TrainStepFinished
from protocol.settings import WeightsSettings
from tests.support.published_state import state_of
from tests.support.scripted_link import ScriptedLink
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings
from workers.trainer.publishing.copies import Copies
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.trainer import Trainer
from workers.trainer.worker import TrainerWorker, make_publisher
from workers.weights.tensors import read

__all__ = ["model_directory", "settings"]  # fixtures
LIMIT_S = 60


@pytest.fixture
def made(settings, model_directory, tmp_path):
    """A trainer, and its publisher, which begins to copy when `begin` is set."""
    options = settings().model_copy(update={"weights": WeightsSettings(directory=str(tmp_path))})
    trainer = Trainer(options, str(model_directory))
    publisher, begin = make_publisher(options, trainer), threading.Event()
    write = publisher.write

    def write_late(*arguments):
        assert begin.wait(LIMIT_S)
        return write(*arguments)

    publisher.write = write_late
    yield trainer, publisher, begin
    begin.set()
    publisher.close()


def weights_of(trainer):
    return {name: tensor.clone() for name, tensor in state_of(trainer).items()}


def published(publisher, copying):
    copy = copying.result(LIMIT_S)
    return copy.policy_version, read(*publisher.seal(copy.written)[:2])


def test_a_copy_that_begins_when_the_next_step_has_all_its_gradients_has_the_weights_of_its_version(made):
    trainer, publisher, begin = made
    copies = Copies(trainer, publisher)
    for version in range(3):
        before = weights_of(trainer)
        copying = copies.begin()
        hold = trainer._copied

        def let_it_begin(hold=hold):
            begin.set()  # not before: the forward and backward passes have not waited for it
            hold()

        trainer.hold_weights(let_it_begin)
        trainer.train_step(*make_batch(train_version=version))
        begin.set()  # a trainer that does not wait has changed its weights by now
        found_version, found = published(publisher, copying)
        begin.clear()
        assert found_version == version
        assert all(torch.equal(tensor, before[name]) for name, tensor in found.items())
        assert any(not torch.equal(tensor, before[name]) for name, tensor in weights_of(trainer).items())
        assert trainer.seconds["copy"] > 0
    copies.close()


def test_weights_of_a_checkpoint_wait_for_the_copy_too(made):
    trainer, publisher, begin = made
    path = trainer.save_checkpoint(0)
    trainer.train_step(*make_batch())
    before = weights_of(trainer)
    copies = Copies(trainer, publisher)
    copying = copies.begin()
    hold = trainer._copied
    trainer.hold_weights(lambda: (begin.set(), hold()))
    trainer.load_checkpoint(path)
    begin.set()
    _, found = published(publisher, copying)
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.items())
    copies.close()


def test_a_trainer_of_the_users_that_cannot_hold_its_weights_waits_for_each_copy(made):
    trainer, publisher, begin = made

    class Plain:
        """What such a class has to have."""

        ranks, policy_version = trainer.ranks, 0
        train_step, tensors_for_publish = trainer.train_step, trainer.tensors_for_publish
        save_checkpoint, load_checkpoint = trainer.save_checkpoint, trainer.load_checkpoint

    begin.set()
    copies = Copies(Plain(), publisher)
    assert copies.begin().done()
    copies.close()


def test_a_copy_that_has_no_room_ends_the_next_step_in_words(made):
    trainer, publisher, _ = made

    def refuse(*_):
        raise OSError("No space left on device")

    publisher.write = refuse
    copies = Copies(trainer, publisher)
    copies.begin()
    with pytest.raises(RunError, match="No space left on device"):
        trainer.train_step(*make_batch())
    copies.close()


class TrainerLink(ScriptedLink):
    """A link of a trainer."""

    endpoint, weights_key = "tcp://127.0.0.1:1", None


async def test_the_worker_trains_while_a_version_is_copied(settings, model_directory, tmp_path, monkeypatch):
    may_copy, in_time = threading.Semaphore(0), []
    write, hold_weights = Publisher.write, Trainer.hold_weights

    def write_late(publisher, *arguments):
        in_time.append(may_copy.acquire(timeout=LIMIT_S))
        return write(publisher, *arguments)

    monkeypatch.setattr(Publisher, "write", write_late)
    monkeypatch.setattr(
        Trainer,
        "hold_weights",
        lambda trainer, copied: hold_weights(trainer, lambda: (may_copy.release(), copied())),
    )
    options = settings().model_copy(update={"weights": WeightsSettings(directory=str(tmp_path))})
    (tmp_path / "config.yaml").touch()
    link, worker = TrainerLink(), TrainerWorker(options, str(model_directory))
    running = asyncio.create_task(worker.run(link))
    await link.hear(Ready)
    for version in range(3):
        train, frames = make_batch(train_version=version)
        link.tell(train, *frames)
        await link.hear(TrainStepFinished)  # whose gradients were made before the version below was copied
    may_copy.release()
    heard = [(await link.hear(PolicyPublished))[0].policy_version for _ in range(4)]
    worker.drain()
    async with asyncio.timeout(LIMIT_S):
        await running
    assert heard == [0, 1, 2, 3]
    assert all(in_time)
