"""Differences between runs of one seed, with their intervals."""

import pytest

from benchmarks.staleness_quality import against, gain_at_the_end, tell_pairs


def cell(*after: float) -> list[dict[str, float]]:
    return [{"seed": seed, "after": value} for seed, value in enumerate(after)]


def test_a_difference_is_of_the_runs_of_one_seed():
    base = cell(0.5, 0.7, 0.6)
    some = [{"seed": 2, "after": 0.5}, {"seed": 0, "after": 0.4}, {"seed": 9, "after": 0.0}]
    assert against(base, some) == " (-0.100 ±0.000)"
    assert against(base, base) == ""


def test_pairs_are_told_bound_by_bound_and_over_all_bounds(capsys):
    found = {
        ("corrected", 1): cell(0.5, 0.5), ("kv_kept", 1): cell(0.6, 0.4),
        ("corrected", 4): cell(0.5), ("kv_kept", 4): cell(0.7),
    }  # fmt: skip
    tell_pairs(found, ["corrected", "kv_kept"])
    first, second, both = capsys.readouterr().out.splitlines()
    assert first == "kv_kept less corrected, bound 1: +0.000 ±1.271, 2 pairs"
    assert second == "kv_kept less corrected, bound 4: +0.200, 1 pairs"
    assert both == "kv_kept less corrected, mean over bounds per seed: +0.025 ±1.588, 2 seeds"


def test_what_is_gained_at_the_end_is_of_the_last_two_tenths():
    assert gain_at_the_end([0.0] * 16 + [0.5, 0.5, 0.6, 0.8]) == pytest.approx(0.1)
    assert gain_at_the_end([0.5, 0.6]) == pytest.approx(0.1)
