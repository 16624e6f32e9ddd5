"""What the options of FSDP2 change, and what they must not."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from protocol.errors import ConfigError
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings  # noqa: F401 - fixtures
from workers.trainer import sharding
from workers.trainer.worker import Trainer


@pytest.fixture
def train(model_directory, settings):  # noqa: F811
    """(metrics, weights afterwards) of some steps with these options of the trainer."""

    def run(*, steps=2, **options):
        trainer = Trainer(settings(minibatches=2, **options), str(model_directory))
        metrics = [trainer.train_step(*make_batch(seed=v, train_version=v)) for v in range(steps)]
        return metrics, state_of(trainer)

    return run


def test_activation_checkpointing_computes_layers_again_and_changes_no_number(train, monkeypatch):
    calls, forward = [], Qwen3MLP.forward

    def counted(*arguments):
        calls.append(1)
        return forward(*arguments)

    monkeypatch.setattr(Qwen3MLP, "forward", counted)
    plain, weights = train()
    once = len(calls)
    again, same = train(activation_checkpointing=True)
    assert len(calls) - once > 1.3 * once
    assert again == plain
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())


def test_holding_one_layer_at_a_time_changes_no_number(train, monkeypatch):
    held, weights = train()
    monkeypatch.setattr(sharding, "_hold_one_layer", lambda model: None)
    as_fsdp_does, same = train()
    assert held == as_fsdp_does
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())


def test_gradients_are_summed_where_they_lie_and_freed_before_the_next_layer(train):
    train(steps=0)  # the group of one rank is there from then on
    share, laid = torch.zeros(6), torch.arange(6.0)
    sum_in_place = sharding.SumInPlace()
    sum_in_place(share, laid, torch.distributed.group.WORLD, torch.distributed.ReduceOp.SUM)
    assert torch.equal(share, torch.arange(6.0))
    assert laid.untyped_storage().nbytes() == 0, "whoever holds it still"


def test_a_bfloat16_forward_pass_updates_float32_weights_nearly_alike(train):
    (plain, *_), weights = train(steps=1)
    (rounded, *_), others = train(steps=1, forward_dtype="bfloat16")
    assert rounded["loss"] != plain["loss"]
    assert rounded["loss"] == pytest.approx(plain["loss"], abs=2e-2)
    assert rounded["entropy"] == pytest.approx(plain["entropy"], rel=1e-2)
    assert {tensor.dtype for tensor in others.values()} == {torch.float32}
    assert any((tensor != tensor.bfloat16()).any() for tensor in others.values())
    moved = [(tensor - weights[name]).abs().max().item() for name, tensor in others.items()]
    assert 0 < max(moved) < 5e-2


def test_updates_far_below_the_precision_of_the_forward_pass_are_kept(train):
    _, before = train(steps=0)
    _, after = train(steps=4, forward_dtype="bfloat16", lr=1e-6)
    moved = [(after[name] - tensor).abs().max().item() for name, tensor in before.items()]
    assert 1e-6 < min(moved) <= max(moved) < 1e-5


def test_offloading_to_the_host_is_refused_where_there_is_no_gpu(model_directory, settings):  # noqa: F811
    with pytest.raises(ConfigError, match="in host memory already"):
        Trainer(settings(cpu_offload=True), str(model_directory))
