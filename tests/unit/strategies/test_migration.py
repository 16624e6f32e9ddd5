"""Migration, on views made by hand."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.migration import by_benefit, by_gap
from strategies.views import RunningView, Settings
from tests.support.made_views import instance
from tests.support.published_engines import PUBLISHED


def test_migration_needs_a_gap_and_goes_to_the_same_or_a_newer_version():
    busy = instance(0, 60, 240_000, version=2)._replace(expected_tokens=780_000)
    views = [busy, instance(1, 1, 300, version=2)]
    running = {0: [RunningView(i, 400 + i, 9000, 2, 1) for i in range(60)], 1: []}
    moves = by_gap(views, running, Settings(phi_throughput=5.0))
    assert moves == [0, 1, 2, 3]  # the shortest are the cheapest to prefill
    assert by_gap(views, running, Settings(phi_throughput=50.0)) == []
    assert by_gap([views[0], views[1]._replace(policy_version=1)], running, Settings()) == []


def test_the_longest_move_to_where_they_end_sooner_only_if_it_pays_for_the_prefill():
    c = PUBLISHED["7b-tp1"]
    views = [
        instance(0, 8, 900_000, coefficients=c)._replace(expected_tokens=1_800_000),
        instance(1, 4, 20_000, coefficients=c),
    ]
    long = [RunningView(0, 20_000, 30_000, 0, 1), RunningView(1, 20_000, 10, 0, 1)]
    settings = Settings(phi_throughput=50.0, is_tail_bound=True)
    assert by_benefit(views, {0: long, 1: []}, settings) == [0]
    assert by_benefit(views, {0: long[1:], 1: []}, settings) == []
    assert by_benefit(views, {0: long, 1: []}, settings._replace(is_tail_bound=False)) == []


def test_the_longest_leave_a_slow_device_even_if_it_is_less_loaded():
    fast = PUBLISHED["7b-tp1"]
    slow = type(fast)(*(2.5 * value for value in fast))
    views = [instance(0, 4, 40_000, coefficients=slow), instance(1, 6, 60_000, coefficients=fast)]
    running = {0: [RunningView(0, 8_000, 20_000, 0, 1), RunningView(1, 8_000, 50, 0, 1)], 1: []}
    settings = Settings(phi_throughput=50.0, is_tail_bound=True)
    assert by_gap(views, running, settings) == [0]
    alike = [view._replace(coefficients=fast) for view in views]
    assert by_gap(alike, running, settings) == []


def crowd():
    """60 trajectories that are worth moving to an instance with a much lower throughput."""
    views = [instance(0, 60, 240_000)._replace(expected_tokens=780_000), instance(1, 2, 300)]
    return views, {0: [RunningView(i, 400 + i, 9000, 0, 1) for i in range(60)], 1: []}


@given(capacity=st.integers(2, 9), room=st.integers(0, 3000))
def test_over_a_gap_moves_only_what_has_room_there_together(capacity, room):
    views, running = crowd()
    views[1] = views[1]._replace(capacity=capacity, kv_tokens=300 + room)
    moves = by_gap(views, running, Settings())
    rest = min(4, capacity - 2)
    most = max(n for n in range(rest + 1) if sum(t.resident_tokens for t in running[0][:n]) <= room)
    assert moves == list(range(most))


def test_a_full_instance_does_not_stand_before_a_faster_one_with_room():
    views, running = crowd()
    full = views[1]._replace(capacity=2)
    views = [views[0], full, instance(2, 4, 1200)]
    assert by_gap(views, running | {2: []}, Settings()) == [0, 1, 2, 3]


def test_the_longest_move_only_as_many_as_have_room_where_they_end_sooner():
    c = PUBLISHED["7b-tp1"]
    source = instance(0, 8, 900_000, coefficients=c)._replace(expected_tokens=1_800_000)
    running = {0: [RunningView(i, 20_000, 30_000 + i, 0, 1) for i in range(8)], 1: []}
    settings = Settings(phi_throughput=50.0, is_tail_bound=True)

    def moves(capacity, kv):
        return by_benefit(
            [source, instance(1, 2, 20_000, coefficients=c, capacity=capacity, kv=kv)], running, settings
        )

    assert moves(64, 10**6) == [7, 6, 5, 4]
    assert moves(4, 10**6) == [7, 6]  # two rows are free
    assert moves(2, 10**6) == []
    assert moves(64, 60_000) == [7, 6]  # 40,000 tokens are free
    assert moves(64, 59_999) == [7]
