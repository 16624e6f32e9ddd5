"""What waits, and where it may go: the multi-level queue."""

from controller.core.state.dispatch_queue import DispatchQueue
from controller.core.state.groups import Trajectory
from protocol.ids import TrajectoryId
from protocol.messages import Segment


def waiting(group, member=0, version=-1):
    trajectory = Trajectory(TrajectoryId(group, member), 8)
    if version >= 0:
        trajectory.segments.append(Segment(1, version, 5))
        trajectory.response_tokens = 5
    return trajectory


def test_the_earliest_deadline_goes_first_and_siblings_stand_together():
    queue = DispatchQueue()
    for trajectory, deadline in ((waiting(3), 5), (waiting(1, 1), 4), (waiting(2), 4), (waiting(1, 0), 4)):
        queue.push(trajectory, deadline)
    order = []
    while (first := queue.peek(0)) is not None:
        order.append(tuple(first.id))
        queue.remove(first)
    assert order == [(1, 0), (1, 1), (2, 0), (3, 0)]


def test_work_that_no_instance_is_new_enough_for_holds_nothing_else_back():
    queue = DispatchQueue()
    queue.push(waiting(1, version=7), 1)
    queue.push(waiting(2, version=3), 9)
    assert queue.peek(5).id.group == 2
    assert queue.peek(7).id.group == 1
    assert queue.peek(2) is None
    assert queue.tally() == {(7, 1): 1, (3, 9): 1}


def test_a_trajectory_that_was_routed_and_came_back_is_queued_once():
    queue = DispatchQueue()
    trajectory = waiting(1)
    queue.push(trajectory, 3)
    queue.remove(trajectory)
    trajectory.attempt += 1
    queue.push(trajectory, 3)
    assert len(queue) == 1
    queue.remove(queue.peek(0))
    assert queue.peek(0) is None


def test_what_has_no_token_yet_may_run_only_where_its_group_may_be_due_so_soon():
    queue = DispatchQueue()
    unstarted = waiting(1)
    queue.push(unstarted, 5)
    queue.push(waiting(2, version=0), 6)
    assert queue.peek(0, reach=4).id.group == 2
    assert queue.peek(0, reach=5).id.group == 1
    queue.push(unstarted, 4)  # a sibling has started under an older version
    assert queue.peek(0, reach=4).id.group == 1
    assert queue.tally() == {(-1, 4): 1, (0, 6): 1}
    assert len(queue) == 2
