"""Pulls that fail at once: an instance is not to blame for a trainer whose death is not known yet."""

from controller.core.events import Tick, WorkerExited
from protocol.messages import Beat, PullFailed
from tests.support.core_run import Run

LEASE_S = 10.0


def failed_twice() -> Run:
    run = Run()
    for _ in range(2):
        run.say("rollout-0", PullFailed(0, "it is not there"))
    return run


def until_it_pulls(run: Run) -> float:
    """Let its time pass, tick by tick, while all workers beat; returns the seconds."""
    began = run.now
    while run.core.state.registry.workers["rollout-0"].pulling is None:
        run.now = min(run.core.next_deadline(), run.now + 1.0)
        for peer in list(run.core.state.registry.workers):
            run.say(peer, Beat())
        run.do(Tick())
    return run.now - began


def test_before_the_last_try_a_lease_passes():
    run = failed_twice()
    assert LEASE_S <= until_it_pulls(run) < LEASE_S + 2
    run.say("rollout-0", PullFailed(0, "it is not there"))
    assert "rollout-0" not in run.core.state.registry.workers


def test_a_trainer_that_is_found_dead_meanwhile_takes_the_blame_and_its_successor_is_pulled_from_at_once():
    run = failed_twice()
    run.do(WorkerExited("trainer", "trainer", -9, ""))
    run.attach("trainer", "trainer")
    assert run.core.state.registry.workers["rollout-0"].pulling is None
    run.publish(0, "v", "digest")
    assert run.core.state.registry.workers["rollout-0"].pulling == 0


def test_a_newer_version_is_pulled_at_once():
    run = failed_twice()
    run.publish(1)
    assert run.core.state.registry.workers["rollout-0"].pulling == 1
