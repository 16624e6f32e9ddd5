"""Any dense Hugging Face causal language model: packed rows equal padded batches, or are refused in words."""

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from protocol.errors import ConfigError
from workers.models.model import load_causal_lm
from workers.trainer.batch import TrainBatch
from workers.trainer.packed_forward import PACKED_SDPA, forward_row, pack_row
from workers.trainer.sequence.no_leak import check_no_leak

CPU = torch.device("cpu")
VOCABULARY = 40
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
SIZED = {**GROUPED, "head_dim": 8}
PACKED = {
    "llama": GROUPED,
    "mistral": {**SIZED, "sliding_window": 6},
    "qwen2": GROUPED,
    "qwen3": SIZED,
    "gemma": SIZED,
    "gemma2": {**SIZED, "sliding_window": 6, "attn_logit_softcapping": 3.0},
    "gemma3_text": {**SIZED, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "phi": SHAPE,
    "phi3": {**GROUPED, "sliding_window": 6},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": SHAPE,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": {**GROUPED, "sliding_window": 6},
    "smollm3": {**GROUPED, "no_rope_layers": [1, 0]},
    "starcoder2": {**GROUPED, "sliding_window": 6},
    "granite": GROUPED,
    "cohere": GROUPED,
    "glm": SIZED,
    "helium": SIZED,
    "ernie4_5": SIZED,
    "gpt_oss": {
        **SIZED,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "opt": {
        **{k: v for k, v in SHAPE.items() if k != "intermediate_size"},
        "ffn_dim": 48,
        "word_embed_proj_dim": 32,
    },
}
REFUSED = {
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "falcon": SHAPE,
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "stablelm": GROUPED,
}


def make(family, options, attention):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**options)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, VOCABULARY, length) for length in (5, 17, 9, 2)]
    responses = [len(row) - 1 for row in tokens]
    return TrainBatch(
        tokens=tokens,
        positions=[np.arange(1, len(row)) for row in tokens],
        groups=[0, 0, 1, 1],
        episodes=[0, 1, 2, 3],
        is_truncated=[False] * 4,
        policy_versions=np.zeros(sum(responses), dtype=np.int64),
        outcomes=np.zeros(4, dtype=np.float32),
        rollout_logprobs=np.zeros(sum(responses), dtype=np.float32),
        advantages=np.zeros(sum(responses), dtype=np.float32),
    )


def gradients(model):
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("family", PACKED)
def test_packed_logits_and_gradients_are_those_of_a_padded_batch(family, batch):
    packed, padded = make(family, PACKED[family], PACKED_SDPA), make(family, PACKED[family], "eager")
    check_no_leak(packed, CPU)
    logits = forward_row(packed, pack_row(batch, range(4), CPU))
    longest = max(batch.lengths)
    tokens_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch.tokens])
    mask_BT = (torch.arange(longest) < torch.tensor(batch.lengths)[:, None]).long()
    whole = padded(input_ids=tokens_BT, attention_mask=mask_BT, use_cache=False).logits
    expected = torch.cat([whole[row, : length - 1] for row, length in enumerate(batch.lengths)])
    scale = max(1.0, expected.abs().max().item())
    assert (logits - expected).abs().max() < 1e-5 * scale
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0)) / len(expected)
    (logits.log_softmax(-1) * weights).sum().backward()
    (expected.log_softmax(-1) * weights).sum().backward()
    found = gradients(packed)
    assert found.keys() == gradients(padded).keys()
    for name, gradient in gradients(padded).items():
        assert (found[name] - gradient).abs().max() < 1e-5 * max(1.0, gradient.abs().max().item()), name


@pytest.mark.parametrize("family", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_packed_is_refused_in_words(family, tmp_path):
    AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**REFUSED[family])).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"Expected .*attention|mixes sequences|does not support"):
        check_no_leak(load_causal_lm(tmp_path, dtype="float32", device=CPU, attention=PACKED_SDPA), CPU)
