"""A slice of benchmarks/faults.py: every fault at once, and the controller killed at each event in turn."""

from collections import Counter

import pytest

from tests.support.fault_host import FaultySimulation, Plagues
from tests.support.fault_sweep import GROUPS, STEPS, every_boundary, one, settings_of


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_no_fault_loses_a_prompt_trains_one_twice_or_breaks_the_bound(first):
    verdicts = [one(seed) for seed in range(first, first + 8)]
    assert [verdict.failure for verdict in verdicts if verdict.failure] == []
    counts = sum((verdict.counts for verdict in verdicts), Counter())
    assert all(count > 0 for what, count in counts.items() if what not in ("late_s", "longest_pause_s"))


def test_a_controller_may_die_at_one_event_in_nine():
    count, failures = every_boundary(2, stride=9)
    assert failures == []
    assert count > 10


def test_a_lossy_link_alone_changes_nothing_but_times():
    settings = settings_of(1)
    lossy = Plagues(lost=0.2, doubled=0.2, late=0.2, late_s=2.0)
    simulation = FaultySimulation(settings, seed=1, prompts=STEPS * GROUPS * 4, plagues=lossy)
    outcome = simulation.run_through()
    assert outcome.is_success, outcome.reason
    assert outcome.summary["staleness/violations"] == 0
    assert min(simulation.counts[what] for what in ("lost", "doubled", "late")) > 20
