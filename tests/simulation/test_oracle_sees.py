"""The oracle finds what it is for: with a cure taken out, one of the first worlds stands still, or fails."""

import pytest

from controller.core import invariants
from controller.core.decisions.placement import dispatch, reports
from controller.core.decisions.versions import pulls
from controller.core.decisions.workers import limits
from controller.core.state import run_state, told
from controller.core.state.views import admission, instances
from tests.simulation.oracle import host
from tests.simulation.oracle.host import Endless, Host
from tests.simulation.oracle.stalls import Stall
from tests.simulation.oracle.world import draw

WORLDS = 2500


def any_queued_work_is_useful(monkeypatch):
    """An idle instance stays while anything of an older version is queued, though it may not start there."""

    def must_pull(self, instance):
        if instance.policy_version < 0:
            return True
        if len(instance.running) > instance.evaluating:
            return False
        rules, queue = self.state.config.staleness, self.state.queue
        if not (rules.partial_rollout or rules.keep_kv):
            return True
        is_of_use = queue.peek(instance.policy_version) is not None
        return not is_of_use and (bool(queue) or not self.state.ledger.can_reserve(instance.policy_version))

    monkeypatch.setattr(pulls.Pulls, "_must_pull", must_pull)


def guard_asks_for_the_next_batch(monkeypatch):
    """Guard waits for the batch after the one that updates the version, and nobody is made to pull for it."""
    refresh = run_state.RunState.refresh_settings

    def refresh_settings(self, fresh=0):
        settings = refresh(self, fresh)._replace(is_batch_ready=self.ledger.is_ready())
        self.strategy_settings = settings
        return settings

    monkeypatch.setattr(run_state.RunState, "refresh_settings", refresh_settings)
    any_queued_work_is_useful(monkeypatch)


def preemptions_keep_kv_from_idle_instances(monkeypatch):
    view = instances.instance_view

    def shared(state, instance):
        return view(state, instance)._replace(kv_tokens=int(instance.kv_tokens * instance.kv_share))

    monkeypatch.setattr(instances, "instance_view", shared)


def work_that_fits_nowhere_waits(monkeypatch):
    monkeypatch.setattr(dispatch.Dispatch, "_alone", lambda self, view, work: view)


def a_rule_that_counts_from_the_last_pull_gets_none(monkeypatch):
    monkeypatch.setattr(admission, "is_closed", lambda state: False)


def lost_evaluations_are_awaited(monkeypatch):
    monkeypatch.setattr(reports.InstanceReports, "give_up_lost_evaluation", lambda self: None)


def nothing_is_ever_overdue(monkeypatch):
    monkeypatch.setattr(limits.Limits, "overdue", lambda self: [])
    monkeypatch.setattr(limits.Limits, "next", lambda self: None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("take_out", "rules"),
    [
        (any_queued_work_is_useful, {"synchronization": "status", "indicator_threshold": 0.0}),
        (any_queued_work_is_useful, {"synchronization": "every_few"}),
        (guard_asks_for_the_next_batch, {"synchronization": "greedy", "guard": True}),
        (preemptions_keep_kv_from_idle_instances, {}),
        (work_that_fits_nowhere_waits, {}),
        (nothing_is_ever_overdue, {}),
    ],
)
def test_with_a_cure_taken_out_the_oracle_sees_a_world_stand_still(monkeypatch, take_out, rules):
    """By itself: the core's own check, which often sees it first, is left out."""
    for module in (host, invariants):
        monkeypatch.setattr(module, "check_liveness", lambda core, grace_s=None: None)
    take_out(monkeypatch)
    with pytest.raises((Stall, Endless)):
        run_until_one_fails(**rules)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "take_out", [a_rule_that_counts_from_the_last_pull_gets_none, lost_evaluations_are_awaited]
)
def test_with_a_cure_taken_out_the_core_sees_that_it_stands_still(monkeypatch, take_out):
    """A misfortune or a limit sets these worlds going again, too early for the oracle."""
    take_out(monkeypatch)
    with pytest.raises(AssertionError, match="the run is stuck"):
        run_until_one_fails()


def run_until_one_fails(**rules):
    for seed in range(WORLDS):
        Host(draw(seed, **rules)).run()


def test_an_honest_worker_that_is_refused_is_seen(monkeypatch):
    """Nobody remembers what was called off, though words of it may be on their way."""
    tell = told.ToldInstance.tell

    def forgetful(self, message, now):
        tell(self, message, now)
        self.called_off.clear()

    monkeypatch.setattr(told.ToldInstance, "tell", forgetful)
    with pytest.raises(AssertionError, match="is honest and was refused"):
        run_until_one_fails()
