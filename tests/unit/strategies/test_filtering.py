"""Which scored groups are kept."""

import pytest

from strategies.filtering import FILTERS


@pytest.mark.parametrize("rewards", [(0.0,), (1.0, 1.0), (-0.5, -0.5, -0.5)])
def test_groups_whose_rewards_are_equal_are_kept_only_without_a_filter(rewards):
    assert FILTERS["none"](rewards)
    assert not FILTERS["zero_variance"](rewards)


@pytest.mark.parametrize("rewards", [(0.0, 1.0), (1.0, 1.0, 0.999), (-1.0, -2.0)])
def test_groups_whose_rewards_differ_are_kept_always(rewards):
    assert all(keep(rewards) for keep in FILTERS.values())
