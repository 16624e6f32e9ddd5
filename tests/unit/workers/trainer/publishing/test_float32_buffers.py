"""What no step trains keeps its precision on its way to engines and checkpoints, whatever `model.dtype` is.

The bias by which DeepSeek V3 and GLM 4.5 choose experts is such: near 14, numbers of bfloat16 are 0.06 apart,
which is more than the scores differ that it is added to.
"""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from protocol.model_files import MARK
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
from workers.models.file_layout import file_layout
from workers.models.model import load_causal_lm, replace_weights
from workers.models.unfilled import unfilled_causal_lm
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.worker import Trainer
from workers.weights.tensors import read

NAME = "model.layers.1.mlp.gate.e_score_correction_bias"
BIAS = torch.tensor([14.01, 14.02, 14.03, 14.04])
SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MIXTURES = {
    "deepseek_v3": {
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "glm4_moe": {"num_key_value_heads": 2, "head_dim": 8},
}  # fmt: skip


@pytest.fixture(params=MIXTURES)
def trainer(request, tmp_path):
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **SHAPE, **MIXTURES[request.param])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.get_buffer(NAME).data = BIAS.clone()
    model.save_pretrained(tmp_path / "model")
    settings = WorkerSettings(
        run_dir=str(tmp_path), seed=0, steps=1, model=ModelSettings(dtype="bfloat16"),
        rollout=RolloutSettings(max_prompt_tokens=8, max_response_tokens=8), reward=RewardSettings(),
        trainer=TrainerSettings(device="cpu", max_tokens_per_microbatch=16),
        weights=WeightsSettings(directory=str(tmp_path)),
    )  # fmt: skip
    return Trainer(settings, str(tmp_path / "model"))


def engines(directory):
    """From the model's files, from what the controller sends of it, and on a device that it shares."""
    yield load_causal_lm(directory, dtype="bfloat16", device="cpu")
    for file in directory.glob("*.safetensors"):
        file.unlink()
    (directory / MARK).touch()
    yield load_causal_lm(directory, dtype="bfloat16", device="cpu", needs_weights=False)
    unfilled = unfilled_causal_lm(directory, dtype="bfloat16", device=torch.device("cpu"))
    for weight in unfilled.parameters():
        weight.untyped_storage().resize_(weight.numel() * weight.itemsize)
    yield unfilled


def test_engines_and_checkpoints_have_the_very_bias_that_the_trainer_routes_by(trainer, tmp_path):
    assert torch.equal(trainer.model.get_buffer(NAME), BIAS)
    publisher = Publisher(trainer._settings, trainer.ranks, trainer.tensors_for_publish())
    version = publisher.seal(publisher.write(0, trainer.tensors_for_publish()))
    publisher.close()
    tensors = read(version.location, version.digest)
    assert {name for name, tensor in tensors.items() if tensor.dtype != torch.bfloat16} == {NAME}
    checkpoint = load_file(trainer.save_checkpoint(0) / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in checkpoint.items()} == {
        name: tensor.dtype for name, tensor in tensors.items()
    }
    assert torch.equal(checkpoint[NAME], BIAS)
    for engine in engines(tmp_path / "model"):
        replace_weights(engine, tensors, file_layout(engine))
        assert torch.equal(engine.get_buffer(NAME), BIAS)
