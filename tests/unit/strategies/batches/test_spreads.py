"""Spreads of rewards are those of the standard library, to the last bit."""

import random
from statistics import pvariance, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.batches.spreads import deviation, spread


def makers(dice: random.Random):
    return (
        lambda: float(dice.random() < 0.3), dice.random, lambda: dice.gauss(1e6, 1e-3), lambda: 5e-324,
        lambda: dice.choice((-1.0, 0.1, 1e-200, 1e9)), lambda: 1.0 + dice.randrange(3) * 2**-52,
    )  # fmt: skip


@pytest.mark.parametrize("maker", range(6))
@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_a_spread_is_the_exact_variance_rounded_once(maker, count):
    make = makers(random.Random(3))[maker]
    rewards = tuple(make() for _ in range(count))
    assert spread(rewards) == pvariance(rewards), rewards


@given(st.lists(st.floats(-1e15, 1e15) | st.floats(-1, 1) | st.integers(-3, 3), min_size=2, max_size=20))
def test_a_deviation_is_that_of_a_sample_rounded_once(rewards):
    assert deviation(rewards) == stdev(rewards)
    assert spread(rewards) == pvariance(rewards)


def test_equal_rewards_have_no_spread():
    assert spread((0.1,) * 7) == deviation((0.1,) * 7) == 0.0
