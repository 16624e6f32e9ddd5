"""Logprobs out of hidden states: the numbers of whole logits, in memory that knows of no vocabulary."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.allocation import allocation
from tests.unit.workers.trainer.losses.test_kept_tokens import SETS, VOCABULARY, kept_tokens
from workers.trainer.losses import Softmax, chosen_logprobs, head_logprobs, logprobs

WIDTH = 16


def capped(states, linear):
    """Something before the head and something behind it, as some families have."""
    return torch.tanh(linear(states * 0.5) / 3.0) * 3.0


def whole(states, head, targets, *, logits_of, softmax):
    return chosen_logprobs(logits_of(states, head), targets, **softmax._asdict())


def results(way, head, targets, *, logits_of, softmax, weights, dtype=torch.float32):
    head.zero_grad()
    states = torch.randn(len(targets), WIDTH, generator=torch.Generator().manual_seed(3), dtype=dtype)
    states.requires_grad_()
    found, entropy = way(states, head, targets, logits_of=logits_of, softmax=softmax)
    ((found * weights).sum() + (entropy * weights.roll(1)).sum() * softmax.is_entropy_trained).backward()
    return found.detach(), entropy.detach(), states.grad, *(p.grad for p in head.parameters())


@pytest.mark.parametrize("rows_at_a_time", [1, 3])
@pytest.mark.parametrize("is_entropy_trained", [True, False])
@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("logits_of", [lambda states, linear: linear(states), capped])
def test_values_and_gradients_are_those_of_whole_logits(
    monkeypatch, rows_at_a_time, is_entropy_trained, is_kept, logits_of
):
    torch.manual_seed(0)
    head, weights = nn.Linear(WIDTH, VOCABULARY), torch.arange(1.0, len(SETS) + 1)
    targets = torch.tensor([ids[len(ids) // 2] for ids in SETS])
    options = {
        "logits_of": logits_of,
        "softmax": Softmax(0.7, is_entropy_trained, kept_tokens(SETS) if is_kept else None),
        "weights": weights,
    }
    expected = results(whole, head, targets, **options)
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", rows_at_a_time * VOCABULARY)
    found = results(head_logprobs, head, targets, **options)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_gradients_of_a_head_in_bfloat16_are_summed_up_in_float32(monkeypatch):
    torch.manual_seed(0)
    head, rows = nn.Linear(WIDTH, 8, bias=False, dtype=torch.bfloat16), 60
    targets = torch.randint(0, 8, (rows,))
    options = {"logits_of": lambda s, linear: linear(s), "softmax": Softmax(1.0), "weights": torch.ones(rows)}
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 8)
    found = results(head_logprobs, head, targets, dtype=torch.bfloat16, **options)[-1]
    assert found.dtype == torch.bfloat16
    expected = results(whole, deepcopy(head).float(), targets, **options)[-1]
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


def test_chunks_too_many_for_a_sum_in_bfloat16_are_all_in_the_gradient(monkeypatch):
    """Equal terms, of which a sum in bfloat16 would not grow beyond 256."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2)
    head = nn.Linear(1, 2, bias=True, dtype=torch.bfloat16)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    states, targets = torch.ones(700, 1, dtype=torch.bfloat16), torch.zeros(700, dtype=torch.long)
    found, _ = head_logprobs(
        states, head, targets, logits_of=lambda s, linear: linear(s), softmax=Softmax(1.0)
    )
    found.sum().backward()
    assert head.weight.grad.tolist() == [[350.0], [-350.0]]  # 700 times a half
    assert head.bias.grad.tolist() == [350.0, -350.0]


class Passes(TorchDispatchMode):
    """Counts elements that are added to a float32 tensor of this width, in place."""

    def __init__(self, width):
        super().__init__()
        self.width, self.added = width, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.add_.Tensor and result.shape[-1] == self.width:
            self.added += result.numel()
        return result


def test_the_gradient_of_a_head_in_bfloat16_is_passed_over_once_for_several_chunks(monkeypatch):
    """It is as large as the head: adding each chunk to it took longer than the chunk's own arithmetic."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2 * VOCABULARY)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16)
    options = {"logits_of": lambda s, linear: linear(s), "softmax": Softmax(1.0), "weights": torch.ones(18)}
    targets = torch.arange(18)
    with Passes(WIDTH) as passes:
        found = results(head_logprobs, head, targets, dtype=torch.bfloat16, **options)[-1]
    assert passes.added == 3 * head.weight.numel()  # of 9 chunks, 4 at a time
    expected = results(whole, deepcopy(head).float(), targets, **options)[-1]
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("is_entropy_trained", [True, False])
def test_of_no_rows_there_are_no_logprobs_and_an_entropy_has_a_gradient_where_it_is_trained(
    is_entropy_trained,
):
    head, softmax = nn.Linear(WIDTH, VOCABULARY), Softmax(1.0, is_entropy_trained)
    for rows in (0, 2):
        found, entropy = head_logprobs(
            torch.randn(rows, WIDTH), head, torch.zeros(rows, dtype=torch.long),
            logits_of=lambda s, linear: linear(s), softmax=softmax,
        )  # fmt: skip
        assert (found.shape, entropy.shape) == ((rows,), (rows,))
        assert (found.requires_grad, entropy.requires_grad) == (True, is_entropy_trained)


def test_a_frozen_head_passes_gradients_on_and_gets_none(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2 * VOCABULARY)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False).requires_grad_(False)
    states = torch.randn(5, WIDTH, requires_grad=True)
    found, _ = head_logprobs(
        states, head, torch.arange(5), logits_of=lambda s, linear: linear(s), softmax=Softmax(1.0)
    )
    found.sum().backward()
    assert head.weight.grad is None
    assert states.grad.abs().min() > 0


@pytest.mark.parametrize("is_entropy_trained", [True, False])
def test_memory_does_not_grow_with_the_vocabulary(monkeypatch, is_entropy_trained):
    """Beyond the gradient of the head itself, and for whole logits by as much as the vocabulary grows."""
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 1 << 15)
    peaks, softmax = {head_logprobs: [], whole: []}, Softmax(1.0, is_entropy_trained)
    for vocabulary in (1 << 10, 1 << 13):
        head, targets = nn.Linear(WIDTH, vocabulary, bias=False), torch.arange(256)
        options = {"logits_of": lambda s, linear: linear(s), "weights": torch.ones(256), "softmax": softmax}
        for way, found in peaks.items():
            found.append(
                allocation(partial(results, way, head, targets, **options)).peak - head.weight.nbytes
            )
    assert peaks[head_logprobs][1] < 1.1 * peaks[head_logprobs][0]
    assert peaks[head_logprobs][0] < 3.5 * 4 * (1 << 15)  # logits and two float32 tensors of their size
    assert peaks[whole][1] > 6 * peaks[whole][0]
