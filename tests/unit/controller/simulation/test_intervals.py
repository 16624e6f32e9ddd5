"""Intervals of means over few seeds."""

import pytest

from controller.simulation.intervals import half_width, paired_ratio, quantile, with_interval


def test_the_interval_is_students():
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / 3**0.5)
    assert half_width([1.0, 2.0] * 20) == pytest.approx(2.0227 * 0.50637 / 40**0.5, rel=1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 20, 21, 22, 29, 50, 100, 1000])
def test_quantiles_are_students_to_six_digits(freedom):
    stats = pytest.importorskip("scipy.stats", reason="scipy has the true ones")
    true = stats.t.ppf(0.975, freedom)
    assert quantile(freedom) == pytest.approx(true, abs=5.1e-7 if freedom <= 20 else 1e-5 * true)


def test_one_seed_has_no_interval():
    assert half_width([1.0]) is None
    assert with_interval([1.0]) == "1.00"
    assert with_interval([]) == "-"


def test_a_mean_is_written_with_its_interval():
    assert with_interval([1.0, 2.0, 3.0], ".1f") == "2.0 ±2.5"
    assert with_interval([0.1, 0.1], "+.0%") == "+10% ±0%"


def test_ratios_are_of_pairs():
    assert paired_ratio([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]
