"""Mixtures of experts: refused where checkpoints would be wrong, said where experts are left out."""

import importlib.util
import logging

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from protocol.errors import ConfigError
from protocol.settings import (
    LoraSettings,
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WorkerSettings,
)
from tests.unit.workers.trainer.test_trainer import make_batch
from workers.models.model import stored_names
from workers.trainer.worker import Trainer

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
        trainer=TrainerSettings(device="cpu", lr=1e-3, lora=LoraSettings(rank=rank)),
    )


def test_training_all_of_one_is_refused_since_its_checkpoints_would_have_another_layout(directory, tmp_path):
    with pytest.raises(ConfigError, match=r"mixture of 4 experts.*trainer\.lora\.rank"):
        Trainer(settings(tmp_path), directory)


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_an_adapter_of_one_is_trained_and_the_log_says_that_experts_have_none(directory, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="workers"):
        trainer = Trainer(settings(tmp_path, rank=2), directory)
    assert "The 4 experts of this model get no adapter" in caplog.text
    trainer.train_step(*make_batch())
    published = trainer.state_for_publish()
    assert published
    assert not any("experts" in name for name in published)
