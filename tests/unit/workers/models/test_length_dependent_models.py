"""Models that compute differently beyond a length: equal to a plain pass on both sides of it, or refused."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
)
from transformers.masking_utils import create_sliding_window_causal_mask

from protocol.errors import ConfigError
from protocol.settings import RolloutSettings
from tests.support.plain_batches import plain_batch
from workers.engines.interface import Generation
from workers.engines.torch import TorchEngine
from workers.trainer.packed_forward import PACKED_SDPA, forward_row, pack_row
from workers.trainer.sequence.no_leak import check_no_leak

CPU = torch.device("cpu")
VOCABULARY, CONTEXT = 40, 64
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ALL_FULL = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
FACTORS = [1.0, 1.5, 2.0, 4.0]  # of a rotary embedding of 8 dimensions
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": FACTORS, "rope_theta": 1e4}
CHUNKED = {
    **SHAPE, "intermediate_size_mlp": 48, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1,
    "attention_chunk_size": 16, "interleave_moe_layer_step": 1, "num_hidden_layers": 4,
    "no_rope_layers": [1, 1, 1, 0], "attn_temperature_tuning": False,
}  # fmt: skip
BEYOND_16 = {
    "phi3 longrope": CONFIG_MAPPING["phi3"](
        **SHAPE, original_max_position_embeddings=16, rope_scaling=dict(LONGROPE)
    ),
    "llama dynamic": LlamaConfig(
        **SHAPE | {"max_position_embeddings": 16}, rope_scaling={"rope_type": "dynamic", "factor": 4.0}
    ),
    "llama 4 chunks": CONFIG_MAPPING["llama4_text"](**CHUNKED),
}


class HiddenWindowConfig(LlamaConfig):
    """An architecture that nobody here knows, with a window under a name of its own."""

    model_type = "hidden_window"
    local_window: int = 12


class HiddenWindowForCausalLM(LlamaForCausalLM):
    """Its window is in the mask alone, which packed attention never sees."""

    config_class = HiddenWindowConfig

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        if attention_mask is None:
            config = deepcopy(self.config)
            config.sliding_window = config.local_window
            attention_mask = create_sliding_window_causal_mask(
                config, self.model.embed_tokens(input_ids), None, None, position_ids=position_ids
            )
        return super().forward(input_ids, attention_mask, position_ids, **options)


AutoConfig.register("hidden_window", HiddenWindowConfig, exist_ok=True)
AutoModelForCausalLM.register(HiddenWindowConfig, HiddenWindowForCausalLM, exist_ok=True)


def make(config, attention="eager"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def make_engine(config, *, longest):
    rollout = RolloutSettings(max_running=4, max_prompt_tokens=4, max_response_tokens=longest - 4)
    return TorchEngine(make(config), rollout, stop_tokens=[])


def plain_logits(config, tokens):
    with torch.no_grad():
        return make(config)(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def engine_error(config, *, longest):
    """Largest error of a logprob of the engine against a plain pass, over responses of unequal length."""
    engine, worst = make_engine(config, longest=longest), 0.0
    budgets = (4, min(11, longest - 3), longest - 3)
    added = [Generation((i, 0, 0), [5, 9, 30 + i], [], budget, i) for i, budget in enumerate(budgets)]
    for generation in added:
        engine.add(generation)
    found = {generation.key: [] for generation in added}
    while engine.is_busy():
        for item in engine.step():
            found[item.key].append(item)
    for generation in added:
        tokens = [*generation.prompt_tokens, *(item.token for item in found[generation.key])]
        logprobs = plain_logits(config, tokens).log_softmax(-1)[2:-1]
        for logprobs_V, item in zip(logprobs, found[generation.key], strict=True):
            worst = max(worst, abs(logprobs_V[item.token].item() - item.logprob))
    return worst


def packed_error(config, lengths):
    """Largest error of a logit of sequences of these lengths in one row, against plain passes."""
    rng = np.random.default_rng(0)
    tokens = [rng.integers(3, VOCABULARY, length) for length in lengths]
    batch = plain_batch(
        tokens=tokens,
        positions=[np.arange(1, length) for length in lengths],
    )
    with torch.no_grad():
        logits = forward_row(make(config, PACKED_SDPA), pack_row(batch, range(len(lengths)), CPU))
    plain = torch.cat([plain_logits(config, row.tolist())[:-1] for row in tokens])
    return (logits - plain).abs().max().item()


@pytest.mark.parametrize("family", [Qwen2Config, Qwen3Config])
def test_a_window_that_no_layer_uses_is_not_applied(family):
    config = family(**SHAPE, **ALL_FULL)
    assert set(config.layer_types) == {"full_attention"}
    assert engine_error(config, longest=40) < 1e-4
    assert packed_error(config, [5, 33]) < 1e-4


@pytest.mark.parametrize("name", BEYOND_16)
def test_what_cannot_be_packed_beyond_a_length_is_refused_in_words_by_the_trainer(name):
    model = make(BEYOND_16[name], PACKED_SDPA)
    with pytest.raises(ConfigError, match=r"16 tokens.*max_response_tokens"):
        check_no_leak(model, CPU, longest=17)


@pytest.mark.parametrize("name", BEYOND_16)
def test_what_stays_within_that_length_is_trained_right(name):
    model = make(BEYOND_16[name], PACKED_SDPA)
    check_no_leak(model, CPU, longest=16)
    assert packed_error(BEYOND_16[name], [5, 16, 11]) < 1e-4


@pytest.mark.parametrize("name", ["phi3 longrope", "llama dynamic"])
def test_the_embedded_engine_refuses_longer_responses_and_is_right_within(name):
    with pytest.raises(ConfigError, match=r"16 tokens.*max_response_tokens"):
        make_engine(BEYOND_16[name], longest=17)
    assert engine_error(BEYOND_16[name], longest=16) < 1e-4
    with pytest.raises(ValueError, match="the engine's context is 16"):
        make_engine(BEYOND_16[name], longest=16).add(Generation((0, 0, 0), [5] * 10, [], 7, 0))


def test_a_window_under_an_unknown_name_is_found_by_the_self_check():
    model = make(HiddenWindowConfig(**SHAPE), PACKED_SDPA)
    with pytest.raises(ConfigError, match="local_window 12"):
        check_no_leak(model, CPU, longest=40)
    check_no_leak(model, CPU, longest=12)  # no sequence gets there


def test_the_embedded_engine_finds_it_too():
    with pytest.raises(ConfigError, match="local_window 12"):
        make_engine(HiddenWindowConfig(**SHAPE), longest=40)
    assert engine_error(HiddenWindowConfig(**SHAPE), longest=12) < 1e-4
