"""Mixtures in the trainer: versions and checkpoints are like their files, adapters have no experts."""

import importlib.util
import logging

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from protocol.settings import (
    LoraSettings,
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)
from tests.support.published_state import state_of
from tests.unit.workers.trainer.test_trainer import make_batch
from workers.engines.torch.engine import TorchEngine
from workers.models.model import load_causal_lm, stored_names
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.worker import Trainer
from workers.weights.tensors import read

SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "moe_intermediate_size": 16,
    "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(0)
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).save_pretrained(path)
    assert any(".experts.3." in name for name in stored_names(path))  # as on the Hub
    return str(path)


def settings(tmp_path, rank=0):
    return WorkerSettings(
        run_dir=str(tmp_path),
        seed=0,
        steps=1,
        model=ModelSettings(),
        rollout=RolloutSettings(),
        reward=RewardSettings(),
        trainer=TrainerSettings(device="cpu", lr=1e-2, lora=LoraSettings(rank=rank)),
    )


def test_a_version_and_a_checkpoint_of_one_have_the_names_of_its_files(directory, tmp_path):
    trainer = Trainer(settings(tmp_path), directory)
    names, before = set(stored_names(directory)), load_file(f"{directory}/model.safetensors")
    trainer.train_step(*make_batch())
    publisher = Publisher(settings(tmp_path), trainer.ranks, trainer.tensors_for_publish())
    published = publisher.seal(publisher.write(1, trainer.tensors_for_publish()))
    version = read(published.location, published.digest)
    assert version.keys() == names
    moved = "model.layers.0.mlp.experts.2.up_proj.weight"
    assert not torch.equal(version[moved], before[moved])

    path = trainer.save_checkpoint(1)
    exported = load_file(path / "model.safetensors")
    again = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = load_causal_lm(directory, dtype="float32", device="cpu")
    engine = TorchEngine(model, RolloutSettings(max_running=2), stop_tokens=[])
    engine.load_weights(1, version)
    held = engine.read_weights()
    for found in (exported, held):
        assert found.keys() == names
        assert all(torch.equal(found[name], version[name]) for name in names)
    for name, tensor in trainer.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor.full_tensor())
    publisher.close()


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_an_adapter_of_one_is_trained_and_the_log_says_that_experts_have_none(directory, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="workers"):
        trainer = Trainer(settings(tmp_path, rank=2), directory)
    assert "The 4 experts of this model get no adapter" in caplog.text
    trainer.train_step(*make_batch())
    published = state_of(trainer)
    assert published
    assert not any("experts" in name for name in published)
