"""The end of each family by itself, against the whole model."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.unit.workers.models.test_model_families import (  # noqa: F401 - batch is a fixture
    CPU,
    GROUPED,
    PACKED,
    SIZED,
    VOCABULARY,
    batch,
    gradients,
    make,
)
from workers.models.tail import called_as, tail_of
from workers.trainer.losses import logprobs
from workers.trainer.packed_forward import PACKED_SDPA, pack_row, proven_tail, response_logprobs

FAMILIES = PACKED | {
    "gemma2": {**PACKED["gemma2"], "final_logit_softcapping": 2.0},
    "granite": {**GROUPED, "logits_scaling": 3.0},
    "cohere": {**GROUPED, "logit_scale": 0.25},
    "qwen3 tied": {**SIZED, "tie_word_embeddings": True},
    "qwen3_moe": {**SIZED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
DIFFERENT = ("gemma2", "granite", "cohere", "phi", "opt", "gpt2", "qwen3 tied", "qwen3_moe")
"""At their ends; the others are like one of these."""


@pytest.mark.parametrize(
    "family",
    [name if name in DIFFERENT else pytest.param(name, marks=pytest.mark.thorough) for name in FAMILIES],
)
def test_logprobs_and_gradients_in_chunks_are_those_of_whole_logits(family, batch, monkeypatch):  # noqa: F811
    found = []
    for chunk in (1 << 24, 7 * VOCABULARY):
        monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
        model = make(family.split()[0], FAMILIES[family], PACKED_SDPA)
        tail, row = proven_tail(model, CPU), pack_row(batch, range(4), CPU)
        assert tail is not None
        score = partial(response_logprobs, temperature=0.7, is_entropy_trained=True, tail=tail)
        chosen, entropy = score(model, row)
        weights = torch.randn(len(chosen), generator=torch.Generator().manual_seed(0))
        ((chosen * weights).sum() + (entropy * weights.roll(1)).sum()).backward()
        found.append({"logprobs": chosen.detach(), "entropy": entropy.detach()} | gradients(model))
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        scale = max(1.0, expected.abs().max().item())
        assert (found[1][name] - expected).abs().max() < 5e-6 * scale, name


def test_something_trained_beside_the_head_keeps_logits_whole(caplog):
    model = make("llama", GROUPED, PACKED_SDPA)
    model.beside = nn.Linear(32, 32)
    assert tail_of(model) is None
    assert proven_tail(model, CPU) is None
    assert "made at once" in caplog.text
    model.beside.requires_grad_(False)
    assert tail_of(model) is not None


def test_a_family_whose_end_is_more_than_it_seems_is_found_out(caplog):
    model = make("llama", GROUPED, PACKED_SDPA)
    backbone, forward = model.model, type(model).forward

    class Odd(type(model)):
        def forward(self, input_ids, **arguments):
            output = forward(self, input_ids, **arguments)
            output.logits = output.logits + input_ids.numel() * (output.logits.shape[1] > 3)
            return output

    model.__class__ = Odd
    assert tail_of(model) is not None
    assert proven_tail(model, CPU) is None
    assert "made at once, not in chunks" in caplog.text
    assert "forward" not in backbone.__dict__


def test_a_forward_pass_that_stood_there_comes_back_whatever_happens():
    layer = nn.Linear(2, 2)
    own = layer.forward = lambda x: x
    with pytest.raises(ZeroDivisionError), called_as(layer, lambda x: 1 / 0):
        layer(torch.ones(2))
    assert layer.forward is own
