"""When an instance reports: each at moments of its own, and none later than its period allows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from workers.rollout.rhythm import Rhythm, next_moment

PERIODS = st.floats(1e-3, 60.0)
TIMES = st.floats(0.0, 1e7)
PHASES = st.floats(0.0, 1.0, exclude_max=True)


@given(TIMES, PERIODS, PHASES)
def test_the_next_moment_is_at_most_a_period_away(now, period_s, phase):
    found = next_moment(now, period_s, phase)
    assert now <= found <= now + period_s + 1e-6 * max(1.0, now)


@given(PERIODS, st.integers(2, 50))
def test_instances_that_begin_together_report_evenly_apart(period_s, count):
    dues = sorted(next_moment(0.0, period_s, number / count) for number in range(count))
    for before, after in pairwise(dues):
        assert abs(after - before - period_s / count) < 1e-6 * period_s


def test_without_a_period_it_is_due_at_every_look():
    one = Rhythm(0.3)
    assert one.is_due(5.0)
    assert one.is_due(5.0)


def test_it_is_due_once_in_a_period_at_its_phase_however_often_one_looks():
    one = Rhythm(0.25)
    one.set_period(1.0, 0.0)
    assert one.is_due(0.0)
    assert [quarter for quarter in range(1, 13) if one.is_due(quarter / 4)] == [3, 7, 11]


def test_what_was_done_by_itself_moves_the_next_time_only_within_the_period():
    one = Rhythm(0.0)
    one.set_period(10.0, 1.0)
    assert one.is_due(1.0)
    one.wait(9.0)
    assert not one.is_due(9.9)
    assert one.is_due(10.0)


def test_a_shorter_period_counts_at_once_and_a_longer_one_from_the_next_time_on():
    one = Rhythm(0.0)
    one.set_period(100.0, 1.0)
    assert one.is_due(1.0)
    one.set_period(2.0, 1.0)
    assert one.is_due(2.0)
    one.set_period(100.0, 2.5)
    assert one.is_due(4.0)
    assert not one.is_due(99.0)
    assert one.is_due(100.0)
