"""Advantages of a hand-worked batch of two groups of four, for every baseline and scale of groups."""

import pytest

from protocol.settings import TrainerSettings
from strategies.outcomes import TurnsView, by_returns, group_advantages, outcomes, overlong_penalty

GROUPS = [(0.0, 0.0, 1.0, 1.0), (1.0, 2.0, 3.0, 6.0)]
# sample deviations: sqrt(1/3); sqrt((4 + 1 + 0 + 9) / 3)
DEVIATIONS = [(1 / 3) ** 0.5, (14 / 3) ** 0.5]


@pytest.mark.parametrize(
    ("baseline", "scale", "expected"),
    [
        ("group_mean", "none", [(-0.5, -0.5, 0.5, 0.5), (-2, -1, 0, 3)]),
        ("leave_one_out", "none", [(-2 / 3, -2 / 3, 2 / 3, 2 / 3), (-8 / 3, -4 / 3, 0, 4)]),
        ("none", "none", GROUPS),
        ("batch_mean", "batch_std", GROUPS),  # the trainer's to do
        ("value", "none", GROUPS),
    ],
)
def test_group_advantages_equal_numbers_worked_by_hand(baseline, scale, expected):
    for rewards, wanted in zip(GROUPS, expected, strict=True):
        found = group_advantages(rewards, baseline=baseline, scale=scale)
        assert found == pytest.approx(wanted, abs=1e-9)


def grpo(rewards):
    return group_advantages(rewards, baseline="group_mean", scale="group_std")


def test_grpo_divides_by_the_sample_deviation_of_the_group():
    for rewards, deviation in zip(GROUPS, DEVIATIONS, strict=True):
        mean = sum(rewards) / 4
        assert grpo(rewards) == pytest.approx([(r - mean) / (deviation + 1e-6) for r in rewards], abs=1e-9)
    assert grpo((2.0, 2.0)) == [0.0, 0.0]
    assert grpo((2.0,)) == [0.0]


def test_a_reward_that_is_compared_with_no_other_is_not_divided_by_nearly_nothing():
    settings = TrainerSettings(baseline="leave_one_out", advantage_scale="group_std")
    assert outcomes((0.5,), [5], settings=settings, max_tokens=10) == (0.5,)  # siblings were masked
    view = TurnsView(((1.0, 2.0), (0.0,)), 1.0, "leave_one_out", "group_std")
    (first, alone), (other,) = by_returns(view)
    assert alone == 2.0
    assert first == -other == pytest.approx(3 / (4.5**0.5 + 1e-6))


def test_dr_grpo_has_no_deviation_anywhere():
    settings = TrainerSettings(algorithm="dr_grpo")
    for factor in (1.0, 10.0):  # twice as far apart is twice the advantage
        rewards = [factor * reward for reward in GROUPS[1]]
        found = outcomes(rewards, [5] * 4, settings=settings, max_tokens=10)
        assert found == pytest.approx([factor * a for a in (-2, -1, 0, 3)], abs=1e-9)


def test_the_penalty_for_length_grows_over_the_buffer_and_ends_at_its_whole():
    def penalty(tokens):
        return overlong_penalty(tokens, max_tokens=100, buffer=0.2, penalty=0.5)

    assert [penalty(tokens) for tokens in (0, 80, 90, 100, 200)] == pytest.approx(
        [0, 0, -0.25, -0.5, -0.5], abs=1e-9
    )
    assert overlong_penalty(100, max_tokens=100, buffer=0.0, penalty=0.5) == 0


def test_the_penalty_for_length_is_part_of_what_a_group_is_compared_by():
    settings = TrainerSettings(algorithm="dapo", advantage_scale="none")
    found = outcomes((1.0, 1.0), (80, 100), settings=settings, max_tokens=100)
    assert found == pytest.approx((0.5, -0.5), abs=1e-9)


def test_the_return_of_a_turn_is_compared_with_those_who_reached_that_turn():
    view = TurnsView(((1.0, 0.0, 4.0), (0.0, 2.0), ()), 0.5, "group_mean", "none")
    # returns: (2, 2, 4), (1, 2)
    assert by_returns(view) == [[0.5, 0.0, 0.0], [-0.5, 0.0], []]
    assert by_returns(view._replace(baseline="none")) == [[2.0, 2.0, 4.0], [1.0, 2.0], []]
    assert by_returns(view._replace(rewards=())) == []
