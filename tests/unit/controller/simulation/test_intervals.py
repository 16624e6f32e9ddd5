"""Intervals of means over few seeds."""

import pytest

from controller.simulation.intervals import half_width, paired_ratio, with_interval


def test_the_interval_is_students():
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5)
    assert half_width([1.0, 2.0] * 20) == pytest.approx(1.96 * 0.5064 / 40**0.5, rel=1e-3)


def test_one_seed_has_no_interval():
    assert half_width([1.0]) is None
    assert with_interval([1.0]) == "1.00"
    assert with_interval([]) == "-"


def test_a_mean_is_written_with_its_interval():
    assert with_interval([1.0, 2.0, 3.0], ".1f") == "2.0 ±2.5"
    assert with_interval([0.1, 0.1], "+.0%") == "+10% ±0%"


def test_ratios_are_of_pairs():
    assert paired_ratio([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]
