"""A trajectory's segments grow and never go back, and who writes to one takes it out of the columns first."""

from controller.core.state.progress.columns import Columns, Given
from controller.core.state.progress.trajectory import Trajectory
from protocol.ids import TrajectoryId


def trajectory() -> Trajectory:
    return Trajectory(TrajectoryId(1, 0), 4, attempt=1)


def test_segments_grow_and_their_versions_never_go_back():
    one = trajectory()
    assert one.extend(1, 3, 2)
    assert one.extend(1, 3, 1)
    assert one.extend(1, 4, 1)
    assert not one.extend(1, 3, 1)
    assert one.segments == [(1, 3, 3), (1, 4, 1)]
    assert (one.response_tokens, one.reported, one.newest_version, one.first_version) == (4, 4, 4, 3)
    assert not one.go_on(2, 4, 1)
    assert one.go_on(1, 4, 5)
    assert one.response_tokens == 9


def test_who_writes_to_one_that_goes_on_takes_it_out_of_the_columns_with_all_it_has():
    for name, value in (("reported", 0), ("response_tokens", 0)):
        one, columns = trajectory(), Columns()
        one.extend(1, 3, 2)
        given = Given(1, 2, most=100, member=one)
        columns.add(given, (1, 0, 1), 3)
        columns.ends = [7]
        setattr(one, name, value)
        assert (getattr(one, name), columns.ends, given.reported) == (value, [], 7)
        left = {"reported": 7, "response_tokens": 7, "segments": [(1, 3, 7)]} | {name: value}
        assert {key: getattr(one, key) for key in left} == left
        assert one.going is None
