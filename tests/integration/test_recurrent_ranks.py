"""A model with linear attention over several ranks, whose rows are not packed: as many passes on each."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from protocol.settings import load_settings
from tests.integration.test_mixture_ranks import prepare
from tests.integration.test_trainer_ranks import SAVED, lead, run_ranks


def test_two_ranks_train_linear_attention_as_one_does(tmp_path):
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, initializer_range=0.2, linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    Qwen3_5ForCausalLM(config).save_pretrained(tmp_path / "model")
    alone, two = (prepare(tmp_path, name, lr=1e-3, adam_eps=1e-5) for name in ("one", "two"))
    lead(load_settings(Path(alone).read_text()), str(tmp_path / "model"))
    ended = run_ranks(tmp_path / "model", "train", (two, 2))
    assert ended.returncode == 0, ended.stderr[-2000:]
    before = load_file(tmp_path / "model" / "model.safetensors")
    one, both = (load_file(tmp_path / name / SAVED / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == both.keys() == before.keys()
    moved = next(name for name in before if name.endswith("linear_attn.in_proj_qkv.weight"))
    assert not torch.equal(one[moved], before[moved])
    for name, tensor in both.items():
        torch.testing.assert_close(tensor, one[name], atol=1e-5, rtol=0)
