"""Routing, on views made by hand."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.cost_model import Coefficients, marginal_gain, prefill_s, step_latency, throughput
from strategies.routing import (
    OLDER,
    ROUTINGS,
    by_group,
    by_least_requests,
    by_marginal_gain,
    has_room,
    lasting_gain,
    moving_loss,
    round_robin,
    weigh_gain,
)
from strategies.views import Settings, WorkView
from tests.support.made_views import WORK, instance


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


def test_the_largest_worth_is_chosen_then_a_sibling_then_the_first():
    dice, chosen = random.Random(1), 0
    for _ in range(500):
        views = [
            instance(
                number, running := dice.choice((0, 3, 30)), 2000 * running, version=dice.choice((3, 4)),
                expected_tokens=4000 * running, urgent=dice.randrange(3), has_sibling=dice.random() < 0.4,
            )
            for number in range(5)
        ]  # fmt: skip
        work = WORK._replace(
            is_fresh=dice.random() < 0.5, min_version=3, home=1, held_tokens=dice.choice((0, 900))
        )
        settings = Settings(newest_version=4, mu=dice.choice((0.0, 0.3)), typical_tokens=4000, urgency=0.5,
                            is_tail_bound=True, keeps_kv=dice.random() < 0.5)  # fmt: skip
        for name, route in ROUTINGS.items():
            if route.weigh is None:
                continue
            worth_on = route.weigh(work, settings)
            worths = [(worth, i.has_sibling, -i.id) for i in views
                      if has_room(work, i) and (worth := worth_on(i)) is not None]  # fmt: skip
            index = route.choose(work, views, settings)
            assert index == (-max(worths)[2] if worths else None), name
            chosen += index is not None
    assert chosen > 400


coefficients = st.builds(
    Coefficients, st.floats(1e-4, 0.1), st.floats(1e-5, 0.1), st.floats(1e-6, 1e-2), st.floats(1e-5, 0.1),
    st.floats(1e-9, 1e-6), st.floats(0, 0.1), st.floats(1e-7, 1e-3), st.floats(0, 1e-8),
)  # fmt: skip
loads = st.builds(
    lambda running, tokens, more, c: instance(
        0, running, tokens, expected_tokens=tokens + more, coefficients=c
    ),
    st.integers(0, 300), st.integers(0, 400_000), st.integers(-1000, 400_000), coefficients,
)  # fmt: skip


@given(loads, st.integers(1, 50_000), st.floats(0.01, 100), st.integers(1, 9000))
def test_the_lasting_gain_is_that_of_those_that_stay_and_no_more_than_run(view, length, horizon_s, typical):
    settings = Settings(horizon_s=horizon_s, typical_tokens=typical)
    c, running, tokens = view.coefficients, view.running, view.resident_tokens
    found = lasting_gain(view, length, settings)
    if not running:
        assert found == marginal_gain(c, running, tokens, length)
        return
    reach = max(1.0, horizon_s / step_latency(c, running, tokens))  # tokens of each until then
    staying = min(running, max(0, view.expected_tokens - tokens) / reach)
    before = throughput(c, staying, staying * typical)
    after = throughput(c, staying + 1, staying * typical + length)
    assert found == pytest.approx(after - before, rel=1e-6, abs=1e-6 * (1 + before))


@given(loads, st.integers(1, 50_000), st.integers(0, 50_000), st.integers(-10, 9000))
def test_a_move_loses_the_prefill_over_the_rest_of_the_episode(view, held, new, rest):
    whole, c, running = held + new, view.coefficients, view.running + 1
    work = WorkView(0, whole, 0, False, expected_tokens=whole + rest, held_tokens=held)
    step_s = step_latency(c, running, view.resident_tokens + whole)
    extra_s = prefill_s(c, whole) - prefill_s(c, new)
    rest_s = max(1, rest) * step_s
    lost = running / step_s * extra_s / (rest_s + extra_s)  # all that run there stand still for so long
    assert moving_loss(work, view) == pytest.approx(lost, rel=1e-6, abs=1e-6 * running / step_s)


def test_siblings_go_elsewhere_only_where_their_instance_is_full():
    views = [instance(0), instance(1, 30, 120_000, has_sibling=True)]
    settings = Settings(mu=0.0)
    assert by_group(WORK, views, settings) == 1
    assert by_group(WORK, [views[0], views[1]._replace(capacity=30)], settings) == 0
    exact = views[1]._replace(kv_tokens=124_000)  # the last 4,000 tokens that it has room for
    assert by_group(WORK, [views[0], exact], settings) == 1
    assert by_group(WORK, [views[0], exact._replace(kv_tokens=123_999)], settings) == 0


@given(loads, st.integers(1, 9000), st.integers(0, 90_000), st.floats(0.01, 1.0))
def test_without_prediction_no_choice_depends_on_what_was_predicted(view, now, expected, mu):
    settings = Settings(mu=mu, uses_prediction=False)
    work, blind = (
        WORK._replace(resident_tokens=now, expected_tokens=expected),
        view._replace(expected_tokens=0),
    )
    worth = weigh_gain(work, settings)(view)
    assert worth == weigh_gain(work._replace(expected_tokens=0), settings)(blind)
    gain = marginal_gain(view.coefficients, view.running, view.resident_tokens, now)
    if not view.running or gain > mu * throughput(view.coefficients, 1, now) * (1 + 1e-9):
        assert worth == pytest.approx(gain * OLDER ** (0 - view.policy_version))


@given(st.lists(loads, min_size=2, max_size=9))
def test_the_order_of_instances_is_that_of_their_gain_for_typical_work(views):
    settings = Settings(mu=0.0, typical_tokens=4000)
    order = ROUTINGS["marginal_gain"].order
    first = min(views, key=lambda view: order(view, settings))
    assert lasting_gain(first, 4000, settings) == max(lasting_gain(view, 4000, settings) for view in views)
