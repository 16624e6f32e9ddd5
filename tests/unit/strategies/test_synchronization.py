"""Synchronization, on views made by hand."""

import pytest

from strategies.synchronization import by_gain, by_status, every_few, greedy
from strategies.views import Settings, SyncView


def behind(index, running, tokens=0, **more):
    return SyncView(index, 0, running, tokens, **more)


def test_a_pull_that_costs_much_waits_until_it_pays():
    dear = {"pull_s": 3.0, "restart_s": 30.0}
    views = [behind(0, 0), behind(1, 30, 120_000, **dear), behind(2, 2, 8_000, pull_s=3.0, restart_s=28.0)]
    settings = Settings(newest_version=1, typical_tokens=4000, horizon_s=60.0)
    assert by_gain(views, settings) == [0]
    assert by_gain(views, settings._replace(fresh=16)) == [0, 2]
    assert greedy(views, settings) == [0, 1, 2]


def test_a_pull_that_costs_next_to_nothing_is_made_at_once():
    views = [behind(0, 30, 120_000, pull_s=0.5)]
    assert by_gain(views, Settings(horizon_s=60.0)) == [0]


@pytest.mark.parametrize(
    ("name", "threshold", "expected"), [("requests", 4, [1]), ("kv", 0.5, [1]), ("throughput", 500.0, [1])]
)
def test_status_pulls_what_has_thinned_out(name, threshold, expected):
    views = [
        behind(0, 40, 900, kv_tokens=1000),
        behind(1, 3, 100, kv_tokens=1000),
        behind(2, 3, 100, kv_tokens=1000, waiting=1),
        behind(3, 3, 100, kv_tokens=1000, useful=2),
    ]
    assert by_status(views, Settings(indicator=name, indicator_threshold=threshold)) == expected


def test_the_guard_waits_for_the_batch_that_the_version_will_train():
    views, settings = [behind(0, 5)], Settings(guard=True)
    assert greedy(views, settings) == by_gain(views, settings) == by_status(views, settings) == []
    assert greedy(views, settings._replace(is_batch_ready=True)) == [0]


def test_every_few_versions_means_every_few():
    views = [behind(0, 5)]
    assert every_few(views, Settings(newest_version=3, sync_steps=4)) == []
    assert every_few(views, Settings(newest_version=4, sync_steps=4)) == [0]


def test_an_instance_that_pulls_for_nothing_is_named_once_and_takes_no_share():
    cheap = SyncView(0, 0, 3, 3_000, pull_s=0.5)
    dear = SyncView(1, 0, 2, 8_000, pull_s=3.0, restart_s=28.0)
    settings = Settings(newest_version=1, typical_tokens=4000, horizon_s=60.0, fresh=16)
    assert by_gain([cheap, dear], settings) == [0, 1]


def test_work_goes_to_the_cheapest_of_the_dear_and_none_is_left_for_the_others():
    dear = [SyncView(number, 0, 2, 8_000, pull_s=3.0, restart_s=28.0 + number) for number in range(3)]
    settings = Settings(newest_version=1, typical_tokens=4000, horizon_s=60.0, fresh=2)
    assert by_gain(dear, settings) == []  # one each: not worth a pull
    room = [view._replace(capacity=18) for view in dear]
    assert by_gain(room[:1], settings._replace(fresh=16)) == [0]
