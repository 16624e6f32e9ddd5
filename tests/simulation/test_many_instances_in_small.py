"""What only happens among many instances, in runs of a few: limits of a step, and decisions that wait.

A core tells and places no more than so much in one step, and decides upon progress later, where instances are
many. With those numbers made small, runs under all faults go through it at every turn.
"""

import pytest

from controller.core import postponed
from controller.core.decisions.placement import dispatch, report_pace
from controller.core.decisions.versions import pulls
from tests.simulation.test_oracle import failures
from tests.support.fault_sweep import every_boundary, one
from tests.support.random_rules import sweep


@pytest.fixture(autouse=True)
def waited(monkeypatch) -> list[float]:
    """Small numbers; the moments until which decisions waited."""
    found: list[float] = []
    may_wait = postponed.Postponed.may_wait

    def noted(self, core, event):
        waits = may_wait(self, core, event)
        if waits:
            found.append(self.until)
        return waits

    monkeypatch.setattr(postponed.Postponed, "may_wait", noted)
    monkeypatch.setattr(postponed, "LEAST_INSTANCES", 1)
    monkeypatch.setattr(pulls, "PULLS_PER_STEP", 1)
    monkeypatch.setattr(report_pace, "TOLD_PER_STEP", 1)
    monkeypatch.setattr(dispatch, "ROUTES_PER_STEP", 2)
    return found


@pytest.mark.parametrize("first", range(400, 412, 4))
def test_random_rules_and_faults_lose_no_prompt_and_break_no_bound(first, waited):
    runs = [sweep(seed) for seed in range(first, first + 4)]
    assert [run.failure for run in runs if run.failure] == []
    assert sum(run.violations for run in runs if run.is_strict) == 0
    assert len(waited) > 100


def test_controllers_that_die_go_on_as_they_would_have(waited):
    assert [verdict.failure for verdict in map(one, range(20, 26)) if verdict.failure] == []
    count, failed = every_boundary(2, stride=23)
    assert failed == []
    assert count > 5
    assert len(waited) > 100


def test_random_worlds_keep_every_promise_and_end(waited):
    assert failures(0, 40) == []
    assert len(waited) > 100
