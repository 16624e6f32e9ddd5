"""A version for more instances than a step may tell is told in several, before any more work is placed."""

import pytest

from controller.core.decisions.versions.pulls import PULLS_PER_STEP
from controller.core.events import StopRequested, Tick
from controller.core.liveness import ReasonKind, why_alive
from protocol import messages
from protocol.messages import Detach
from tests.support.placing_run import Run

INSTANCES = 2 * PULLS_PER_STEP + 5


@pytest.fixture
def run() -> Run:
    """Instances that have version 0; two batches of one group are there, and others are under way."""
    run = Run(
        instances=0, prompts=INSTANCES, group_size=2, batch_groups=1,
        staleness={"max_staleness": 3, "mu": 0.0, "synchronization": "greedy", "in_flight_batches": "all"},
    )  # fmt: skip
    for number in range(INSTANCES):
        run.join(f"i-{number}", capacity=1, version=0)
    for group in range(2):
        for member in range(2):
            run.finish(group, member)
        run.score(group)
    run.pulls.clear()
    return run


def told(run: Run) -> int:
    return len(run.sent(messages.Pull))


def test_each_is_told_once_and_no_more_than_a_few_in_a_step(run):
    at = run.now
    run.step(1)
    assert told(run) == PULLS_PER_STEP
    assert not run.sent(messages.Route)
    assert run.core.next_deadline() == run.now > at
    assert why_alive(run.core).kind is ReasonKind.RUNS
    while run.core.pulls.is_cut:
        run.do(Tick(), run.now)
        assert told(run) <= PULLS_PER_STEP
    assert sorted(run.pulls) == sorted((f"i-{number}", 1) for number in range(INSTANCES))
    assert run.sent(messages.Route)


def test_who_left_meanwhile_is_not_told(run):
    run.step(1)
    gone = run.core.pulls._chosen[0].peer
    run.say(gone, Detach("enough"))
    while run.core.pulls.is_cut:
        run.do(Tick(), run.now)
    assert (gone, 1) not in run.pulls
    assert len(run.pulls) == INSTANCES - 1


def test_a_newer_version_goes_before_the_rest_of_an_older_one(run):
    run.step(1)
    run.step(2)
    while run.core.pulls.is_cut:
        run.do(Tick(), run.now)
    told_first = [peer for peer, version in run.pulls if version == 1]
    assert len(told_first) == 2 * PULLS_PER_STEP  # with the end of the next train step came some more
    assert {peer for peer, version in run.pulls if version == 2}.isdisjoint(told_first)
    assert len(run.pulls) == INSTANCES


def test_a_run_that_ends_does_not_tick_for_those_that_are_left(run):
    run.step(1)
    run.do(StopRequested("enough"))
    assert not run.core.is_cut
    assert run.core.next_deadline() != run.now
