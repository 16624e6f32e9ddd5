"""Advantages per token, returns and the critic's loss against numbers worked by hand and a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.trainer.losses import (
    explained_variance,
    generalized_advantages,
    standardized,
    token_rewards,
    value_loss,
)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_generalized_advantages_equal_an_example_worked_by_hand():
    # one response of two tokens: deltas 0.5*2 - 1 + 0 = 0 and 4 - 2 = 2; advantages 0 + 0.5*0.5*2 and 2
    found = generalized_advantages(
        doubles(0.0, 4.0), doubles(1.0, 2.0), torch.tensor([2]), gamma=0.5, gae_lambda=0.5
    )
    assert found.advantages_N.tolist() == pytest.approx([0.5, 2.0], abs=1e-9)
    assert found.returns_N.tolist() == pytest.approx([1.5, 4.0], abs=1e-9)


def test_generalized_advantages_equal_a_loop_over_responses_of_many_lengths():
    lengths = torch.tensor([3, 0, 7, 1])
    rewards, values = torch.randn(2, 11, dtype=torch.float64)
    found = generalized_advantages(rewards, values, lengths, gamma=0.97, gae_lambda=0.9)
    expected, start = [], 0
    for length in lengths.tolist():
        r, v = rewards[start : start + length].tolist(), [*values[start : start + length].tolist(), 0.0]
        advantage, backwards = 0.0, []
        for t in reversed(range(length)):
            advantage = r[t] + 0.97 * v[t + 1] - v[t] + 0.97 * 0.9 * advantage
            backwards.append(advantage)
        expected += backwards[::-1]
        start += length
    assert found.advantages_N.tolist() == pytest.approx(expected, abs=1e-9)
    assert (found.returns_N - values).tolist() == pytest.approx(expected, abs=1e-9)


def test_a_penalty_per_token_counts_for_it_and_all_tokens_before():
    rewards = token_rewards(doubles(1.0, 5.0, 2.0), torch.tensor([2, 0, 1]), doubles(0.1, 0.2, 0.4))
    assert rewards.tolist() == pytest.approx([-0.1, 0.8, 1.6], abs=1e-9)
    found = generalized_advantages(
        rewards, torch.zeros(3, dtype=torch.float64), torch.tensor([2, 0, 1]), gamma=1.0, gae_lambda=1.0
    )
    assert found.advantages_N.tolist() == pytest.approx([0.7, 0.8, 1.6], abs=1e-9)


def test_standardized_advantages_have_mean_zero_and_deviation_one():
    # mean 2; sample deviation of 0, 2, 4 is 2
    assert standardized(doubles(0, 2, 4), is_scaled=True).tolist() == pytest.approx([-1, 0, 1], abs=1e-6)
    assert standardized(doubles(0, 2, 4), is_scaled=False).tolist() == [-2, 0, 2]
    assert standardized(doubles(3, 3), is_scaled=True).tolist() == [0, 0]
    assert standardized(doubles(3), is_scaled=True).tolist() == [0]


@pytest.mark.parametrize("outcome", [0.1, -5.3, 100.3])
@pytest.mark.parametrize("tokens", [1_000, 12_345, 100_003])
def test_outcomes_that_are_all_equal_are_no_advantage_however_many_tokens_a_batch_has(outcome, tokens):
    # a mean in float32 is off by a rounding, of which 1e-6 in the place of the deviation makes up to 38
    found = standardized(torch.full((tokens,), outcome), is_scaled=True)
    assert found.dtype == torch.float32
    assert not found.any()


def test_the_value_loss_takes_the_larger_of_plain_and_clipped_error():
    # errors 1 and (0.2 - 1)² = 0.64: plain counts; 0.25 and (0.2 - 1.5)² = 1.69: the bound holds
    values = doubles(0.0, 1.0).requires_grad_()
    result = value_loss(
        values, doubles(0.0, 0.0), doubles(1.0, 1.5), token_weights_N=doubles(0.5, 0.5), clip=0.2
    )
    result.loss.backward()
    assert result.loss.item() == pytest.approx((1 + 1.69) / 4, abs=1e-9)
    assert values.grad.tolist() == pytest.approx([0.5 * (0 - 1), 0.0], abs=1e-9)
    assert result.clipped == 1


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant():
    returns = doubles(1, 2, 3)
    assert explained_variance(returns, returns) == 1
    assert explained_variance(doubles(5, 5, 5), returns) == pytest.approx(0)
    assert explained_variance(returns, doubles(2, 2, 2)) == 0


@pytest.mark.parametrize("outcome", [0.0, 0.1, -5.3])
def test_returns_that_differ_by_their_rounding_alone_leave_nothing_to_explain(outcome):
    lengths = torch.tensor([300, 1, 40])
    values = torch.randn(341, generator=torch.Generator().manual_seed(0)) / 10 + 0.5
    rewards = token_rewards(torch.full((3,), outcome), lengths, torch.zeros(341))
    found = generalized_advantages(rewards, values, lengths, gamma=1.0, gae_lambda=1.0)
    assert explained_variance(values, found.returns_N) == 0  # and not -1e12
    different = found.returns_N + torch.arange(341) % 2
    assert explained_variance(different, different) == 1


@given(st.lists(st.tuples(*[st.floats(-9, 9)] * 3, st.floats(0, 1)), min_size=1, max_size=9), st.floats(0, 3))
def test_the_value_loss_equals_a_loop_over_tokens(tokens, clip):
    values, old, returns, weights = (doubles(*column) for column in zip(*tokens, strict=True))
    found = value_loss(values, old, returns, token_weights_N=weights, clip=clip)
    loss = clipped = 0
    for value, before, wanted, weight in tokens:
        held = before + min(clip, max(-clip, value - before))
        loss += weight * max((value - wanted) ** 2, (held - wanted) ** 2) / 2
        clipped += bool((doubles(held) - wanted).square() > (doubles(value) - wanted).square())
    assert found.loss.item() == pytest.approx(loss, abs=1e-9)
    assert found.clipped.item() == clipped


def test_advantages_of_two_tokens_and_of_unequal_counts_are_standardized():
    assert standardized(doubles(1, 4), is_scaled=False).tolist() == [-1.5, 1.5]
    root = 2**0.5
    assert standardized(doubles(1, 4), is_scaled=True).tolist() == pytest.approx(
        [-1 / root, 1 / root], abs=1e-6
    )
    tiny = standardized(doubles(0, 1e-6), is_scaled=True)  # of the size of epsilon, which is added
    assert tiny[1].item() == pytest.approx(0.5e-6 / (1e-6 / root + 1e-6), rel=1e-3)
