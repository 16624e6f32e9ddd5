"""Arithmetic of a train step as it is reckoned, against what torch counts."""

from typing import NamedTuple

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from protocol.settings import TrainerSettings
from protocol.trainer.compute import Passes, train_flops
from tests.unit.workers.models.test_model_families import CPU, GROUPED, SIZED, VOCABULARY, make
from workers.models import arithmetic
from workers.models.arithmetic import ComputeMeter, arithmetic_of, passes_of

LENGTH = 48


class Ranks(NamedTuple):
    device: torch.device
    size: int = 1


SHAPES = {
    "llama": GROUPED,
    "qwen3": SIZED,
    "qwen3 tied": {**SIZED, "tie_word_embeddings": True},
    "gpt2": {},
}


@pytest.mark.parametrize("family", SHAPES)
def test_operations_of_a_step_are_those_that_torch_counts(family):
    model = make(family.split()[0], SHAPES[family], "eager")
    tokens = torch.arange(LENGTH)[None] % VOCABULARY
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, use_cache=False).logits.sum().backward()
    # torch counts the half of attention that is masked too
    own = train_flops(arithmetic_of(model), tokens=LENGTH, sampled=LENGTH, squares=2 * LENGTH**2)
    assert own == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_forward_pass_is_counted_as_torch_counts_it():
    model = make("llama", GROUPED, "eager").requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.arange(LENGTH)[None] % VOCABULARY, use_cache=False)
    passes = Passes(trained=0, only_forward=1)
    own = train_flops(
        arithmetic_of(model), tokens=LENGTH, sampled=LENGTH, squares=2 * LENGTH**2, passes=passes
    )
    assert own == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_of_experts_those_count_that_a_token_passes():
    mixture = {**SIZED, "num_experts": 4, "moe_intermediate_size": 16}
    two, four = (
        arithmetic_of(make("qwen3_moe", {**mixture, "num_experts_per_tok": n}, "eager")) for n in (2, 4)
    )
    model = make("qwen3_moe", {**mixture, "num_experts_per_tok": 2}, "eager")
    experts = sum(p.numel() for name, p in model.named_parameters() if "experts" in name)
    assert four.linear - two.linear == experts // 2


def test_of_a_mixture_that_does_not_say_how_many_pass_nothing_is_told(monkeypatch):
    monkeypatch.setattr(arithmetic, "expert_count", lambda shape: 8)
    meter = ComputeMeter(make("llama", GROUPED, "eager"), Ranks(CPU), torch.bfloat16)
    assert meter.metrics([10], 5, 1.0) == {}


def test_a_device_without_a_known_peak_has_no_mfu():
    meter = ComputeMeter(make("llama", GROUPED, "eager"), Ranks(CPU, 2), torch.bfloat16)
    found = meter.metrics([10, 20], 12, 2.0)
    assert set(found) == {"compute/flops_per_token", "compute/flops_per_s_per_device"}
    per_second = found["compute/flops_per_token"] * 30 / 2.0 / 2
    assert found["compute/flops_per_s_per_device"] == pytest.approx(per_second)
    meter._peak = 4 * found["compute/flops_per_s_per_device"]
    assert meter.metrics([10, 20], 12, 2.0)["compute/mfu"] == 0.25


def test_passes_without_gradient_and_a_critic_are_work_too():
    model = make("llama", GROUPED, "eager")
    plain = TrainerSettings()
    per_token = []
    for options, has_own_pass in (
        (plain, False),
        (plain, True),
        (plain.model_copy(update={"kl_coefficient": 0.1}), True),
        (plain.model_copy(update={"baseline": "value"}), True),
    ):
        passes = passes_of(options, has_own_pass=has_own_pass)
        meter = ComputeMeter(model, Ranks(CPU), torch.bfloat16, passes=passes)
        per_token.append(meter.metrics([10, 20], 12, 2.0)["compute/flops_per_token"])
    assert per_token == sorted(per_token)
    assert len(set(per_token)) == 4
    assert per_token[2] - per_token[1] == pytest.approx(per_token[1] - per_token[0])
