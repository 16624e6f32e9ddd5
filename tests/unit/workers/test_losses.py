"""The loss against numbers worked by hand and against a loop that shares no code with it."""

import math

import pytest
import torch

from workers.losses import (
    chosen_logprobs,
    mismatch_metrics,
    policy_loss,
    token_weights,
    truncated_importance_weights,
)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def naive(logprobs, proximal, rollout, advantages, weights, low, high, cap):
    """Loss and its gradient, token by token, in plain floats."""
    loss, gradient = 0.0, []
    for log_p, log_x, log_r, a, w in zip(logprobs, proximal, rollout, advantages, weights, strict=True):
        importance = min(math.exp(log_x - log_r), cap)
        u = math.exp(log_p - log_x)
        clipped = min(max(u, 1 - low), 1 + high)
        loss -= w * importance * min(u * a, clipped * a)
        gradient.append(-w * importance * u * a if u * a <= clipped * a else 0.0)
    return loss, gradient


def test_the_loss_and_its_gradient_equal_a_naive_loop():
    generator = torch.Generator().manual_seed(0)
    logprobs, proximal, rollout, advantages = torch.randn(4, 200, generator=generator, dtype=torch.float64)
    logprobs.requires_grad_()
    lengths = torch.tensor([70, 1, 0, 129])
    for aggregation in ("token_mean", "sequence_mean"):
        weights = token_weights(lengths, aggregation).double()
        importance = truncated_importance_weights(proximal, rollout, cap=2.0)
        result = policy_loss(
            logprobs, proximal, advantages, importance, token_weights_N=weights, clip_low=0.2, clip_high=0.28
        )
        columns = [column.tolist() for column in (logprobs, proximal, rollout, advantages, weights)]
        loss, gradient = naive(*columns, 0.2, 0.28, 2.0)
        assert result.loss.item() == pytest.approx(loss, abs=1e-9)
        found = torch.autograd.grad(result.loss, logprobs)[0]
        assert (found - doubles(*gradient)).abs().max() < 1e-9
        assert result.clipped == sum(g == 0 for g in gradient)
        assert result.nonfinite == 0


def test_the_loss_equals_numbers_worked_by_hand():
    # ratios 1.5, 0.5, 1.5, 0.5; weights min(exp(x - r), 2) = 1, 0.5, 2 (of 4), 1; advantages 1, 1, -1, -1
    proximal = doubles(0.5, 0.4, 0.4, 0.8).log()
    rollout = doubles(0.5, 0.8, 0.1, 0.8).log()
    logprobs = (proximal + doubles(1.5, 0.5, 1.5, 0.5).log()).requires_grad_()
    importance = truncated_importance_weights(proximal, rollout, cap=2.0)
    assert importance.tolist() == pytest.approx([1.0, 0.5, 2.0, 1.0])
    result = policy_loss(
        logprobs,
        proximal,
        doubles(1, 1, -1, -1),
        importance,
        token_weights_N=torch.full((4,), 0.25, dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.3,
    )
    # min: 1.3 (clipped), 0.5, -1.5, -0.8 (clipped); weighted 1.3 + 0.25 - 3 - 0.8 = -2.25; mean, negated
    assert result.loss.item() == pytest.approx(2.25 / 4, abs=1e-12)
    result.loss.backward()
    assert logprobs.grad.tolist() == pytest.approx([0.0, -0.25 * 0.25, 0.25 * 3.0, 0.0], abs=1e-12)
    assert result.clipped == 2


def test_three_equal_policies_give_the_plain_policy_gradient():
    same = torch.randn(50, dtype=torch.float64)
    advantages = torch.randn(50, dtype=torch.float64)
    logprobs = same.clone().requires_grad_()
    importance = truncated_importance_weights(same, same, cap=2.0)
    weights = token_weights(torch.tensor([50]), "token_mean").double()
    result = policy_loss(
        logprobs, same, advantages, importance, token_weights_N=weights, clip_low=0.2, clip_high=0.2
    )
    result.loss.backward()
    assert (logprobs.grad + weights * advantages).abs().max() < 1e-9


def test_ratios_that_are_not_finite_are_neutralised_and_counted():
    proximal = doubles(-1.0, -math.inf, math.nan, -1.0)
    importance = truncated_importance_weights(proximal, doubles(-math.inf, -1, -1, -500), cap=2.0)
    assert importance.tolist() == [1.0, 1.0, 1.0, 2.0]
    logprobs = doubles(-1.0, -1.0, -1.0, -1.0).requires_grad_()
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    result = policy_loss(
        logprobs, proximal, torch.ones(4), importance, token_weights_N=weights, clip_low=0.2, clip_high=0.2
    )
    result.loss.backward()
    assert result.nonfinite == 2
    assert logprobs.grad.tolist() == [-0.25, 0.0, 0.0, -0.5]


def test_token_weights_are_those_of_the_two_means():
    lengths = torch.tensor([1, 0, 3])
    assert token_weights(lengths, "token_mean").tolist() == [0.25] * 4
    assert token_weights(lengths, "sequence_mean").tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_mismatch_metrics_equal_their_formulas():
    d = doubles(*[0.0] * 98, 0.5, -1.0)
    metrics = mismatch_metrics(d - 2, torch.full_like(d, -2), (d.exp()).clamp(max=1.5))
    k3 = (math.exp(0.5) - 1 - 0.5 + math.exp(-1) - 1 + 1) / 100
    assert metrics["mismatch_kl"] == pytest.approx(k3, abs=1e-12)
    assert metrics["logprob_gap_p99"] == pytest.approx(0.5)
    assert metrics["importance_weight/mean"] == pytest.approx((98 + 1.5 + math.exp(-1)) / 100)
    assert metrics["importance_weight/max"] == 1.5
    assert set(mismatch_metrics(d[:0], d[:0], d[:0]).values()) == {0.0}


def test_chosen_logprobs_have_the_values_and_gradients_of_a_log_softmax(monkeypatch):
    monkeypatch.setattr("workers.losses.CHUNK_ELEMENTS", 21)  # 3 rows at a time
    logits = torch.randn(10, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (10,))
    found, entropy = chosen_logprobs(logits, targets, temperature=0.7)
    reference = (logits / 0.7).log_softmax(-1)
    expected = reference.gather(-1, targets[:, None]).squeeze(-1)
    upstream = torch.randn(10, dtype=torch.float64)
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(entropy, -(reference.exp() * reference).sum(-1), atol=1e-12)
    (gradient,) = torch.autograd.grad(found, logits, upstream)
    assert torch.allclose(gradient, torch.autograd.grad(expected, logits, upstream)[0], atol=1e-12)


def test_forbidden_tokens_leave_logprobs_and_entropy_finite():
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    logprobs, entropy = chosen_logprobs(logits, torch.tensor([1]), temperature=1.0)
    logprobs.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert logits.grad.tolist() == [pytest.approx([-0.5, 0.5, 0.0])]


def test_a_cap_below_one_and_unequal_shapes_are_refused():
    with pytest.raises(ValueError, match=r"cap 0\.5"):
        truncated_importance_weights(torch.zeros(2), torch.zeros(2), cap=0.5)
    with pytest.raises(ValueError, match="expected equal shapes"):
        truncated_importance_weights(torch.zeros(2), torch.zeros(3), cap=2.0)
