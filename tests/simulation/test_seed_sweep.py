"""Simulated runs whose rules and faults are all drawn from a seed: a share of the benchmark's thousand."""

import pytest

from tests.support.random_rules import sweep


@pytest.mark.parametrize("first", range(100, 124, 4))
def test_random_rules_and_faults_lose_no_prompt_and_break_no_bound(first):
    runs = [sweep(seed) for seed in range(first, first + 4)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.violations for run in runs if run.is_strict) == 0
    assert all(run.trained > 0 for run in runs)
