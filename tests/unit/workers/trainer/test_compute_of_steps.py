"""A step's arithmetic is known after it, and goes to the controller with its metrics."""

import pytest

from tests.unit.workers.trainer.test_trainer import (  # noqa: F401 - fixtures
    make_batch,
    model_directory,
    settings,
)
from workers.trainer.batch import read_batch
from workers.trainer.worker import Trainer, TrainerWorker


def test_the_worker_tells_the_arithmetic_of_the_whole_batch_beside_the_metrics(model_directory, settings):  # noqa: F811
    made = settings()
    worker = TrainerWorker(made, str(model_directory))
    trainer = worker._trainer = Trainer(made, str(model_directory))
    assert trainer.compute == {}
    train, frames = make_batch()
    told = worker._train(train, frames)
    lengths = read_batch(train, frames).lengths
    model = trainer._meter._arithmetic
    dense = 6 * (model.linear * sum(lengths) + model.head * told["tokens"])
    attention = 6 * model.attention * sum(length**2 for length in lengths)
    assert told["compute/flops_per_token"] == pytest.approx((dense + attention) / sum(lengths))
    assert told["compute/flops_per_s_per_device"] > 0
    assert "compute/mfu" not in told
