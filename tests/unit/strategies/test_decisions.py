"""Routing, synchronization, migration and admission, each on views made by hand."""

import pytest

from controller.config.models import StalenessSettings
from strategies.admission import (
    adaptive,
    areal,
    by_cap,
    one_batch,
    verl_async,
    whole_window,
)
from strategies.migration import by_benefit, by_gap
from strategies.pacing import next_cap, next_mu
from strategies.presets import PRESETS
from strategies.routing import by_group, by_least_requests, by_marginal_gain, round_robin
from strategies.synchronization import by_gain, by_status, every_few, greedy
from strategies.views import AdmissionView, InstanceView, RunningView, Settings, SyncView, WorkView
from tests.support.published_engines import PUBLISHED

WORK = WorkView(group=0, resident_tokens=4000, min_version=0, is_fresh=True, expected_tokens=4000)


def instance(index, running=0, tokens=0, *, version=0, capacity=512, kv=10**6, **more):
    more.setdefault("expected_tokens", tokens)
    return InstanceView(index, version, running, tokens, capacity, kv, **more)


def test_one_instance_is_filled_up_to_the_published_numbers():
    for mu, expected in ((0.2, 41), (0.3, 30), (0.5, 29)):
        n = 0
        while by_marginal_gain(WORK, [instance(0, n, 4000 * n)], Settings(mu=mu)) is not None:
            n += 1
        assert n == expected


def test_an_idle_instance_is_never_refused_whatever_mu():
    assert by_marginal_gain(WORK, [instance(0)], Settings(mu=1.0)) == 0


def test_work_goes_where_it_adds_most_and_never_where_it_would_wait():
    views = [instance(0, 20, 80_000, expected_tokens=160_000), instance(1, 5, 20_000, expected_tokens=40_000),
             instance(2, kv=3999), instance(3, capacity=0)]  # fmt: skip
    assert by_marginal_gain(WORK, views, Settings()) == 1
    assert by_least_requests(WORK, views, Settings()) == 1
    assert by_marginal_gain(WORK, views[2:], Settings()) is None


def test_nothing_is_kept_back_at_mu_zero_even_where_urgent_ones_run():
    busy = instance(0, 60, 240_000, expected_tokens=480_000, urgent=60)
    settings = Settings(mu=0.0, urgency=20.0, is_tail_bound=True)
    assert by_marginal_gain(WORK, [busy], settings) == 0
    assert by_marginal_gain(WORK, [busy], settings._replace(mu=0.01)) is None


def test_fresh_work_prefers_new_weights_but_not_a_crowd():
    work = WORK._replace(is_fresh=True)
    views = [instance(0, 4, 16_000, version=3), instance(1, 4, 16_000, version=4)]
    assert by_marginal_gain(work, views, Settings(newest_version=4)) == 1
    crowd = instance(1, 60, 240_000, version=4, expected_tokens=480_000)
    settings = Settings(newest_version=4, mu=0.0, typical_tokens=4000)
    assert by_marginal_gain(work, [instance(0, 2, 8_000, version=3), crowd], settings) == 0


def test_an_instance_is_judged_by_those_that_stay_until_the_next_version():
    leaving = instance(0, 12, 48_000, expected_tokens=48_600)  # each has 50 tokens left
    staying = instance(1, 8, 32_000, expected_tokens=64_000)
    settings = Settings(mu=0.0, typical_tokens=4000, horizon_s=10.0)
    assert by_marginal_gain(WORK, [leaving, staying], settings) == 0
    assert by_marginal_gain(WORK, [leaving, staying], settings._replace(uses_prediction=False)) == 1
    assert by_marginal_gain(WORK, [leaving, staying], settings._replace(horizon_s=0.01)) == 1  # nobody ends


def test_begun_work_that_every_pull_sends_back_is_not_kept_back():
    crowd = [instance(0, 60, 240_000, expected_tokens=480_000)]
    begun = WORK._replace(is_fresh=False)
    settings = Settings(mu=0.3, keeps_kv=False)
    assert by_marginal_gain(WORK, crowd, settings) is None
    assert by_marginal_gain(begun, crowd, settings) == 0
    assert by_marginal_gain(begun, crowd, settings._replace(keeps_kv=True)) is None


def test_siblings_go_home_while_there_is_room():
    views = [instance(0, 3, 9000), instance(1, 12, 40_000, has_sibling=True)]
    assert by_group(WORK, views, Settings()) == 1
    full = [views[0], views[1]._replace(capacity=12)]
    assert by_group(WORK, full, Settings()) == 0


def test_round_robin_takes_the_next_where_one_is_full():
    views = [instance(0), instance(1, capacity=0), instance(2)]
    assert round_robin(WORK._replace(group=1), views, Settings()) == 2


def test_urgent_residents_repel_new_work_only_where_deadlines_decide():
    views = [instance(0, 10, 40_000, urgent=8), instance(1, 11, 44_000)]
    settings = Settings(urgency=20.0, is_tail_bound=True)
    assert by_marginal_gain(WORK, views, settings) == 1
    assert by_marginal_gain(WORK, views, settings._replace(is_tail_bound=False)) == 0


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


VIEW = AdmissionView(
    max_staleness=3,
    batch_groups=8,
    train_version=5,
    published_version=4,
    generating=6,
    occupied=2,
    started=50,
)


def test_the_cap_counts_a_batch_until_its_version_is_out():
    assert by_cap(VIEW, 2.0) == 0
    assert by_cap(VIEW._replace(published_version=5), 2.0) == 8
    assert whole_window(VIEW, "all") == 24
    assert adaptive(VIEW._replace(cap=16.0), "auto") == 0
    assert adaptive(VIEW._replace(cap=16.0, is_tail_bound=False), "auto") == 8


def test_rules_of_other_systems_admit_what_they_say():
    assert areal(VIEW, None) == (3 + 4 + 1) * 8 - 50
    assert one_batch(VIEW, None) == 0
    assert one_batch(VIEW._replace(generating=0, occupied=0), None) == 8
    assert verl_async(VIEW._replace(in_system_at_pull=10, started_since_pull=20), None) == 35 - 30


def test_the_cap_grows_while_groups_are_wanted_and_shrinks_while_stragglers_are_waited_for():
    view = VIEW._replace(cap=16.0)
    grown = next_cap(view, starved=0.3, late=0.0, elasticity=0.8)
    assert grown > 16.0
    assert next_cap(view, starved=0.3, late=0.0, elasticity=0.0) < 16.0
    assert next_cap(view, starved=0.0, late=0.3, elasticity=0.8) < next_cap(
        view, starved=0.0, late=0.0, elasticity=0.8
    )
    assert next_cap(view._replace(cap=32.0), starved=0.9, late=0.0, elasticity=1.0) == 32.0


def test_mu_comes_down_while_it_keeps_work_from_starting():
    calm = {"most": 0.3, "starved": 0.0, "late": 0.2, "gated": 0.0, "long_share": 0.01}
    assert next_mu(0.3, **calm | {"gated": 0.9}) < 0.3
    assert next_mu(0.1, **calm) > 0.1
    assert next_mu(0.1, **calm | {"late": 0.0}) == 0.1
    assert next_mu(0.3, **calm) == 0.3


def test_nothing_is_kept_back_where_many_responses_are_as_long_as_the_longest():
    mu = 0.3
    for _ in range(6):
        mu = next_mu(mu, most=0.3, starved=0.0, late=0.2, gated=0.0, long_share=0.1)
    assert mu == 0.0


def test_a_key_that_is_written_out_beats_the_preset():
    settings = StalenessSettings.model_validate({"strategy": "greedy", "routing": "round_robin"})
    assert (settings.routing, settings.synchronization) == ("round_robin", "greedy")
    assert StalenessSettings() == StalenessSettings.model_validate({"strategy": "staleflow"})
    for name, values in PRESETS.items():
        resolved = StalenessSettings.model_validate({"strategy": name})
        assert all(getattr(resolved, key) == value for key, value in values.items())
