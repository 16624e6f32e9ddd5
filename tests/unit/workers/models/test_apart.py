"""Models that carry state from token to token: rows of theirs equal plain passes over single sequences."""

import logging

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from protocol.errors import ConfigError
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
from tests.support.plain_batches import plain_batch
from workers.models.apart import is_apart
from workers.trainer.losses import logprobs
from workers.trainer.packed_forward import (
    PACKED_SDPA,
    compute_apart,
    forward_row,
    pack_row,
    pack_rows,
    proven_tail,
    response_logprobs,
)
from workers.trainer.policy import check_policy, load_packed
from workers.trainer.sequence.no_leak import check_no_leak
from workers.trainer.trainer import Trainer

CPU = torch.device("cpu")
VOCABULARY = 40
LENGTHS = (5, 70, 13)  # the delta rule is computed in chunks of 64
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 128,
    "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DELTA_RULE = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
FAMILIES = {
    "qwen3_5_text": {**SHAPE, **DELTA_RULE},
    "qwen3_next": {**SHAPE, **DELTA_RULE, **EXPERTS},
    "lfm2": {
        **{k: v for k, v in SHAPE.items() if k != "head_dim"},
        "layer_types": ["conv", "full_attention"],
    },
    "falcon_h1": {**SHAPE, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4},
}

pytestmark = pytest.mark.filterwarnings("ignore")


def make(family, attention=PACKED_SDPA):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return plain_batch(
        tokens=[rng.integers(3, VOCABULARY, length) for length in LENGTHS],
        positions=[np.arange(1, length) for length in LENGTHS],
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_of_a_row_are_those_of_plain_passes(family, batch, caplog):
    model, plain = make(family), make(family, "eager")
    with caplog.at_level(logging.WARNING, logger="workers"):
        check_no_leak(model, CPU, longest=max(LENGTHS))
    assert is_apart(model)
    assert "carries state from token to token" in caplog.text
    found = forward_row(model, pack_row(batch, range(3), CPU))
    alone = [plain(torch.from_numpy(tokens)[None], use_cache=False).logits[0, :-1] for tokens in batch.tokens]
    wanted = torch.cat(alone)
    assert (found - wanted).abs().max() < 1e-5 * max(1.0, wanted.abs().max().item())
    weights = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0)) / len(wanted)
    (found.log_softmax(-1) * weights).sum().backward()
    (wanted.log_softmax(-1) * weights).sum().backward()
    gradients = {name: weight.grad for name, weight in plain.named_parameters() if weight.grad is not None}
    for name, weight in model.named_parameters():
        if name in gradients:
            gradient = gradients[name]
            assert (weight.grad - gradient).abs().max() < 1e-5 * max(1.0, gradient.abs().max().item()), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_state_that_is_below_rounding_yet_is_found_in_bfloat16(family):
    """As in a new model: its weights are small, and so is what they carry over, until they are trained."""
    torch.manual_seed(0)
    config = CONFIG_MAPPING[family](**{**FAMILIES[family], "initializer_range": 0.02})
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=PACKED_SDPA, dtype=torch.bfloat16
    ).eval()
    check_no_leak(model, CPU, longest=max(LENGTHS), dtype=torch.bfloat16)
    assert is_apart(model)


def test_a_model_without_a_state_is_packed_in_bfloat16_as_in_float32():
    model = AutoModelForCausalLM.from_config(
        CONFIG_MAPPING["qwen3"](**SHAPE), attn_implementation=PACKED_SDPA, dtype=torch.bfloat16
    ).eval()
    check_no_leak(model, CPU, longest=max(LENGTHS), dtype=torch.bfloat16)
    assert not is_apart(model)


def test_without_it_the_state_goes_on_into_the_next_sequence(batch):
    packed, apart = make("qwen3_5_text"), make("qwen3_5_text")
    compute_apart(apart)
    row = pack_row(batch, range(3), CPU)
    assert (forward_row(packed, row) - forward_row(apart, row)).abs().max() > 0.1


def test_chunks_of_logits_are_those_of_the_whole_row(batch, monkeypatch):
    model = make("qwen3_5_text")
    compute_apart(model)
    tail, row = proven_tail(model, CPU), pack_row(batch, range(3), CPU)
    assert tail is not None
    whole, _ = response_logprobs(model, row, temperature=0.7)
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", VOCABULARY * 16)
    chunked, _ = response_logprobs(model, row, temperature=0.7, tail=tail)
    assert torch.allclose(chunked, whole, atol=1e-6)


class Ranks:
    """Where one of several ranks stands; nothing is sent."""

    rank, size, device = 1, 2, CPU


class Alone(Ranks):
    """The only one."""

    rank, size = 0, 1


def test_micro_batches_have_sequences_of_like_length_and_no_more_than_their_padding_allows(batch):
    model = make("qwen3_5_text")
    options = TrainerSettings(max_tokens_per_microbatch=90)
    packed = pack_rows(batch, range(3), model, Alone(), options=options)
    assert [row.lengths for row in packed] == [[70, 13, 5]]
    compute_apart(model)
    apart = pack_rows(batch, range(3), model, Alone(), options=options)
    assert [row.lengths for row in apart] == [[70], [13, 5]]


def settings(folder, **trainer):
    return WorkerSettings(
        run_dir=str(folder), seed=0, steps=1, model=ModelSettings(),
        rollout=RolloutSettings(max_prompt_tokens=8, max_response_tokens=8), reward=RewardSettings(),
        weights=WeightsSettings(directory=str(folder)), trainer=TrainerSettings(device="cpu", **trainer),
    )  # fmt: skip


class Group:
    """Ranks that would share a row."""

    size = 2


def test_ranks_cannot_share_a_row_of_it(tmp_path):
    options = settings(tmp_path, ranks=2, sequence_ranks=2)
    with pytest.raises(ConfigError, match=r"sequence_ranks is 2\. Expected 1 with this model"):
        check_policy(make("qwen3_5_text"), options, Ranks(), Group(), forward_dtype=torch.float32)


def test_reference_and_critic_are_computed_as_the_policy_is(tmp_path):
    make("qwen3_5_text").save_pretrained(tmp_path / "model")
    options = settings(tmp_path, kl_coefficient=0.1, baseline="value")
    trainer = Trainer(options, str(tmp_path / "model"))
    assert is_apart(trainer.model)
    assert trainer._reference is not None
    assert is_apart(trainer._reference)
    assert trainer._critic is not None
    assert is_apart(trainer._critic.model)


def test_a_model_that_packs_is_packed(tmp_path):
    config = CONFIG_MAPPING["qwen3"](**SHAPE)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = load_packed(tmp_path, device=CPU, forward_dtype=torch.float32)
    check_no_leak(model, CPU)
    assert not is_apart(model)
    assert not is_apart(load_packed(tmp_path, device=CPU, forward_dtype=torch.float32, like=model))
