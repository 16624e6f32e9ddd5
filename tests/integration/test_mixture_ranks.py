"""A mixture of experts over several ranks: each expert is published and saved from the rank that has it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
    load_settings,
)
from tests.integration.test_trainer_ranks import (
    MINIBATCHES,
    SAVED,
    STEPS,
    assert_published_is_saved,
    lead,
    run_ranks,
)

pytestmark = pytest.mark.thorough  # of seven trainers


@pytest.fixture
def directory(tmp_path):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, moe_intermediate_size=16, num_experts=6, num_experts_per_tok=2,
        initializer_range=0.2,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def prepare(folder, name, **options):
    options = {"lr": 1e-2, "minibatches": MINIBATCHES, "max_tokens_per_microbatch": 24} | options
    settings = WorkerSettings(
        run_dir=str(folder / name), seed=0, steps=STEPS, model=ModelSettings(), rollout=RolloutSettings(),
        reward=RewardSettings(), weights=WeightsSettings(directory=str(folder / f"{name} weights")),
        trainer=TrainerSettings(device="cpu", **options),
    )  # fmt: skip
    file = folder / f"{name}.json"
    file.write_text(settings.model_dump_json())
    return str(file)


def test_one_two_and_four_ranks_make_the_same_files_of_a_mixture(tmp_path, directory):
    names = ("one", "two", "four")  # those four share no host, so experts are sent to rank 0
    alone, two, four = (prepare(tmp_path, name) for name in names)
    lead(load_settings(Path(alone).read_text()), str(directory))
    ended = run_ranks(directory, "train", (two, 2), (four, 4))
    assert ended.returncode == 0, ended.stderr[-2000:]
    files = load_file(directory / "model.safetensors")
    first = load_file(tmp_path / "one" / SAVED / "model.safetensors")
    assert first.keys() == files.keys()
    moved = "model.layers.1.mlp.experts.5.down_proj.weight"
    assert not torch.equal(first[moved], files[moved])
    for name in names[1:]:
        saved = load_file(tmp_path / name / SAVED / "model.safetensors")
        assert saved.keys() == files.keys()
        for key, tensor in saved.items():
            torch.testing.assert_close(tensor, first[key], atol=2e-4, rtol=1e-3)
    assert_published_is_saved(tmp_path, *names)
