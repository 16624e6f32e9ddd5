"""Pulls that fail at once: an instance is not to blame for a trainer whose death is not known yet."""

from controller.core.commands import Warn
from controller.core.events import Tick, WorkerExited
from protocol.messages import Beat, Pulled, PullFailed
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


LOST = PullFailed(1, "tcp://10.0.0.7:5000: disconnected", is_unreachable=True)


def test_a_source_that_no_network_reaches_is_tried_once_a_lease_and_nobody_is_closed():
    run = Run(version=1)
    run.say("rollout-0", LOST)
    assert until_it_pulls(run) == 0  # a relay may have gone
    run.say("rollout-0", LOST)
    for _ in range(20):
        assert LEASE_S <= until_it_pulls(run) < LEASE_S + 2
        run.say("rollout-0", LOST)
    until_it_pulls(run)
    run.say("rollout-0", Pulled(1, "digest", 0.1))
    assert run.core.state.registry.workers["rollout-0"].unreachable_since is None


def test_an_instance_that_reaches_no_source_for_as_long_as_a_pull_may_take_is_closed_and_told_so():
    run = Run(version=1, limits={"pull_s": 30.0})
    run.say("rollout-0", LOST)
    for _ in range(4):
        assert "rollout-0" in run.core.state.registry.workers
        until_it_pulls(run)
        run.say("rollout-0", LOST)
    assert "rollout-0" not in run.core.state.registry.workers
    said = next(c.text for c in run.commands if isinstance(c, Warn) and "was closed" in c.text)
    assert "No source was reached for 30 s (limits.pull_s), the last because: tcp://10.0.0.7:5000" in said


def test_a_wrong_checksum_in_between_is_counted_by_itself():
    run = Run(version=1)
    for _ in range(4):
        until_it_pulls(run)
        run.say("rollout-0", LOST)
    for left in (True, True, False):
        until_it_pulls(run)
        run.say("rollout-0", PullFailed(1, "its checksum is wrong"))
        assert ("rollout-0" in run.core.state.registry.workers) == left


def test_the_first_version_that_no_network_reaches_has_a_wrong_address():
    run = Run()
    for _ in range(3):
        until_it_pulls(run)
        run.say("rollout-0", PullFailed(0, LOST.reason, is_unreachable=True))
    assert "rollout-0" not in run.core.state.registry.workers
