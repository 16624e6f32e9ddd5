"""What was generated and trained of each window is counted, group by group."""

from controller.core.state.batches.windows import Windows
from controller.core.state.groups import Group, Trajectory
from protocol.ids import TrajectoryId
from protocol.messages import Segment


def group(number, *lengths, version=0):
    """A complete group whose prompt is expected at e^2 - 1 tokens."""
    made = Group(number, state="scoring", policy_version=version, size=len(lengths))
    for member, length in enumerate(lengths):
        one = Trajectory(TrajectoryId(number, member), 4, state="finished", ending="stop")
        one.response_tokens = length
        one.segments[:] = [Segment(1, version, length)]
        made.members.append(one)
    made.rewards = made.outcomes = (0.0,) * len(lengths)
    made.seen = float(number % 2)
    return made


def test_a_window_is_told_when_its_last_group_has_left():
    books = Windows()
    short, long, dropped = group(1, 10, 20), group(2, 100, 300, version=1), group(3, 1000, 1000)
    books.open([short, long, dropped])
    for one in (short, long, dropped):
        books.generated(one)
    books.trained(short, short.contribute(), 2)
    books.left(dropped)
    assert books.figures() == {}
    books.trained(long, long.contribute(), 2)
    found = books.figures()
    assert found["sampler/windows"] == 1
    assert found["sampler/generated_length"] == 2430 / 6
    assert found["sampler/trained_length"] == 430 / 4
    assert found["sampler/length_bias"] == 430 / 4 / (2430 / 6) - 1
    assert found["sampler/staleness"] == (2 * 2 + 1 * 2) / 4
    assert found["sampler/staleness_by_token"] == (2 * 30 + 1 * 400) / 430
    assert found["sampler/dropped_share"] == 0
    assert found["sampler/dropped_length"] is None
    assert found["sampler/known_share"] == 4 / 6
    assert books.figures() == {}
    assert books.total.figures() == found


def test_a_bias_is_not_told_where_responses_were_called_off():
    books = Windows()
    short, spare = group(1, 10, 20), group(2, 100)
    books.open([short, spare])
    books.dropped(short, [50])
    books.generated(short)
    books.trained(short, short.contribute(), 1)
    books.dropped(spare, [100, 0])
    books.left(spare)
    found = books.figures()
    assert found["sampler/length_bias"] is None
    assert found["sampler/dropped_share"] == 3 / 5
    assert found["sampler/dropped_length"] == 50
    assert books.total.figures() == found


def test_groups_of_no_window_are_not_counted():
    books = Windows()
    one = group(1, 10)
    books.generated(one)
    books.trained(one, one.contribute(), 2)
    books.dropped(one, [10])
    books.left(one)
    assert books.figures() == {}
    assert books.total.trained == books.total.dropped == 0


def test_the_error_of_what_was_expected_is_told_apart_by_whether_the_prompt_was_known():
    books = Windows()
    known, new = group(1, 0), group(2, 0)
    known.expected_log, new.expected_log = 2.0, 3.0
    books.open([known, new])
    for one in (known, new):
        books.generated(one)
        books.trained(one, one.contribute(), 1)
    found = books.figures()
    assert (found["sampler/log_error"], found["sampler/log_error_new"]) == (2.0, 3.0)


def test_a_group_leaves_its_window_once_however_often_it_is_said():
    books = Windows()
    first, second = group(1, 10), group(2, 20)
    books.open([first, second])
    books.trained(first, first.contribute(), 1)
    books.left(first)
    assert books.figures() == {}
    books.left(second)
    assert books.figures()["sampler/windows"] == 1
