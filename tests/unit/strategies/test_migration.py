"""Migration, on views made by hand."""

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
