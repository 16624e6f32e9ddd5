"""Logprobs and entropy of chosen tokens against torch's log_softmax."""

import math

import pytest
import torch

from workers.trainer.losses import chosen_logprobs


def test_chosen_logprobs_and_entropy_have_the_values_and_gradients_of_a_log_softmax(monkeypatch):
    monkeypatch.setattr("workers.trainer.losses.logprobs.CHUNK_ELEMENTS", 21)  # 3 rows at a time
    logits = torch.randn(10, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (10,))
    reference = (logits / 0.7).log_softmax(-1)
    expected = reference.gather(-1, targets[:, None]).squeeze(-1)
    expected_entropy = -(reference.exp() * reference).sum(-1)
    upstream, upstream_entropy = torch.randn(2, 10, dtype=torch.float64)
    for is_entropy_trained in (False, True):
        found, entropy = chosen_logprobs(
            logits, targets, temperature=0.7, is_entropy_trained=is_entropy_trained
        )
        assert torch.allclose(found, expected, atol=1e-12)
        assert torch.allclose(entropy, expected_entropy, atol=1e-12)
        assert entropy.requires_grad == is_entropy_trained
    (alone,) = torch.autograd.grad(found, logits, upstream, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, logits, upstream, retain_graph=True)
    assert torch.allclose(alone, wanted, atol=1e-12)
    outputs, gradients = (found, entropy), (upstream, upstream_entropy)
    (both,) = torch.autograd.grad(outputs, logits, gradients)
    (wanted,) = torch.autograd.grad((expected, expected_entropy), logits, gradients)
    assert torch.allclose(both, wanted, atol=1e-12)


def test_forbidden_tokens_leave_logprobs_and_entropy_finite():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    logprobs, entropy = chosen_logprobs(logits, torch.tensor([1]), temperature=1.0, is_entropy_trained=True)
    (logprobs.sum() + entropy.sum()).backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [pytest.approx([-0.5, 0.5, 0.0])]


def test_logits_are_not_changed_and_a_large_vocabulary_costs_no_precision():
    logits = torch.randn(4, 150_000, generator=torch.Generator().manual_seed(0)) * 3
    before, targets = logits.clone(), torch.tensor([0, 7, 140_000, 149_999])
    logits.requires_grad_()
    expected = logits.detach().double().log_softmax(-1)
    for temperature in (1.0, 0.5):
        found, entropy = chosen_logprobs(logits, targets, temperature=temperature, is_entropy_trained=True)
        (found.sum() + entropy.sum()).backward()
        assert torch.equal(logits, before)
        if temperature == 1.0:
            exact = expected.gather(-1, targets[:, None]).squeeze(-1)
            torch.testing.assert_close(found.double(), exact, atol=5e-6, rtol=0)
            exact = -(expected.exp() * expected).sum(-1)
            torch.testing.assert_close(entropy.double(), exact, atol=5e-6, rtol=0)
