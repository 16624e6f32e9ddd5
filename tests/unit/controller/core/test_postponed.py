"""What tells only of progress is decided upon with what comes next, and soon; nothing else waits."""

import pytest

from controller.core.events import PromptsRead, StopRequested, Tick
from controller.core.postponed import LEAST_INSTANCES, POSTPONED_S
from protocol.messages import Beat, InstanceStatus, MachineUse
from tests.support.core_run import Run

SOON = POSTPONED_S / 10
STATUS = InstanceStatus(1, 0, 4, 0, 20, 1, 1, 0.1, 0, 0.0, 1, 0, ())
SAYINGS = {"status": STATUS, "beat": Beat(), "use": MachineUse(1, "")}


class Counted(Run):
    """A run with responses under way that counts decisions."""

    def __init__(self, *, instances=LEAST_INSTANCES, **sections) -> None:
        super().__init__(instances=instances, **sections)
        self.decisions = 0
        self.first, *_ = self.start_groups(2)
        decide = self.core._decide

        def counted():
            self.decisions += 1
            return decide()

        self.core._decide = counted  # type: ignore[method-assign]
        self.do(Tick())

    def grow(self, start, count=1, ending="", at=None):
        self.now = self.now if at is None else at - 0.01
        return self.generate(self.first, count, ending, start=start)


def test_progress_soon_after_a_decision_waits_for_what_comes_next():
    run = Counted()
    began = run.now
    assert run.grow(0) == []
    assert run.decisions == 1
    assert run.core.next_deadline() == pytest.approx(began + POSTPONED_S)
    run.do(PromptsRead(2, 1, True))
    assert run.decisions == 2
    assert run.core.postponed.until is None


@pytest.mark.parametrize("what", SAYINGS)
def test_so_does_what_an_instance_says_of_itself(what):
    run = Counted()
    run.say("rollout-0", SAYINGS[what])
    assert run.decisions == 1


def test_many_of_them_wait_no_longer_than_one():
    run = Counted()
    began = run.now
    for start in range(3):
        run.grow(start, at=began + (start + 1) * SOON)
    assert run.decisions == 1
    until = run.core.next_deadline()
    assert until == pytest.approx(began + POSTPONED_S)
    run.do(Tick(), at=until)
    assert run.decisions == 2


def test_after_that_time_progress_is_decided_upon_at_once():
    run = Counted()
    run.grow(0, at=run.now + 1.01 * POSTPONED_S)
    assert run.decisions == 2
    assert run.core.postponed.until is None


def test_a_response_that_ends_is_decided_upon_at_once():
    run = Counted()
    run.grow(0)
    run.grow(1, ending="stop")
    assert run.decisions == 2


def test_what_is_no_longer_true_is_decided_upon_at_once():
    run = Counted(instances=LEAST_INSTANCES + 1)
    run.generate(run.first, 1, "", version=7)  # a version that the instance does not have: it is closed
    assert run.decisions == 2
    assert "rollout-0" not in run.core.state.registry.workers


def test_among_few_instances_none_waits():
    run = Counted(instances=LEAST_INSTANCES - 1)
    run.grow(0)
    assert run.decisions == 2


def test_what_was_taken_in_before_it_does_not_wait_with_it():
    run = Counted()
    run.core.step(run.now, PromptsRead(2, 1, True), decides=False)
    run.grow(0)
    assert run.decisions == 2


def test_nothing_that_is_due_waits():
    run = Counted()
    run.core.training.held_until = run.now + SOON
    run.grow(0, at=run.now + 2 * SOON)
    assert run.decisions == 2


def test_a_run_that_winds_up_waits_for_nothing():
    run = Counted()
    run.do(StopRequested("enough"))
    decisions = run.decisions
    run.say("rollout-0", Beat())
    assert run.decisions == decisions + 1 or run.core.state.finished
