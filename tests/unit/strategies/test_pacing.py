"""What is learnt of the wait for each batch, and what the rules of pacing make of it."""

import pytest

from protocol.errors import PluginError
from strategies import own
from strategies.kinds import PROMISES, hold
from strategies.pacing import (
    Pace,
    StepView,
    adaptive,
    after_step,
    elasticity,
    fixed,
    hold_s,
    is_tail_bound,
    next_cap,
    next_mu,
)
from strategies.views import AdmissionView, InstanceView

VIEW = AdmissionView(2, 8, 5, 4, 10, 6, 56, cap=16.0)
START = Pace(16.0)


def steps(pace: Pace, count: int, **waits: float) -> Pace:
    waits = {"period_s": 10.0, "starved_s": 0.0, "late_s": 0.0} | waits
    for _ in range(count):
        pace = after_step(pace, window=3, **waits)
    return pace


def step(pace: Pace, **more) -> StepView:
    return StepView(pace, VIEW, 0.2, 0.3, True)._replace(**more)


def test_waits_are_means_of_shares_in_which_the_last_step_counts_three_tenths():
    pace = steps(START, 1, starved_s=5.0, late_s=2.0)
    assert (pace.starved, pace.late) == pytest.approx((0.3 * 0.5, 0.3 * 0.2))
    assert steps(pace, 1).starved == pytest.approx(0.7 * 0.3 * 0.5)
    assert pace.cap == START.cap


def test_the_first_step_is_the_mean_and_later_ones_move_it():
    pace = steps(START, 1)
    assert pace.period_s == 10.0
    assert steps(pace, 1, period_s=20.0).period_s == pytest.approx(13.0)


def test_of_steps_only_the_last_window_is_remembered():
    pace = START
    for seconds in (1.0, 2.0, 3.0, 4.0):
        pace = steps(pace, 1, period_s=seconds)
    assert pace.periods == (2.0, 3.0, 4.0)


def test_steps_are_tail_bound_by_the_longer_wait_and_stay_so_while_there_is_none():
    assert is_tail_bound(steps(START, 3, late_s=4.0), before=False)
    assert not is_tail_bound(steps(START, 3, starved_s=4.0, late_s=1.0), before=True)
    assert is_tail_bound(START, before=True)
    assert not is_tail_bound(START, before=False)


def test_a_batch_is_held_for_a_share_of_the_mean_once_a_window_of_steps_is_known():
    assert hold_s(steps(START, 2), evenness=0.8, window=3) == 0.0
    assert hold_s(steps(START, 3), evenness=0.8, window=3) == pytest.approx(8.0)
    assert hold_s(steps(START, 3), evenness=0.0, window=3) == 0.0


def test_a_trainer_that_starves_gets_more_groups_and_one_that_waits_for_stragglers_fewer():
    more, _ = adaptive(step(steps(START, 5, starved_s=4.0)))
    fewer, _ = adaptive(step(steps(START, 5, late_s=4.0)))
    assert fewer < VIEW.cap < more


def test_mu_is_left_alone_where_the_user_says_so():
    busy = steps(START, 5, starved_s=4.0)
    assert adaptive(step(busy))[1] < 0.2
    assert adaptive(step(busy, adapts_mu=False))[1] == 0.2


def test_fixed_changes_nothing():
    assert fixed(step(steps(START, 5, starved_s=4.0))) == (16.0, 0.2)


def test_idle_instances_have_all_to_gain_and_full_ones_less():
    idle = InstanceView(0, 3, 0, 0, 64, 1 << 20)
    light = InstanceView(1, 3, 2, 1_000, 64, 1 << 20)
    heavy = InstanceView(2, 3, 256, 500_000, 512, 1 << 20)
    assert elasticity([idle]) == 1.0
    assert 0 < elasticity([heavy]) < elasticity([light]) <= 1.0
    assert elasticity([idle, light]) == elasticity([light])


@pytest.mark.parametrize("answer", [16.0, (16.0,), (0, 0.1), (16.0, 1.5), (float("inf"), 0.1), ("16", 0.1)])
def test_a_rule_of_the_users_answers_a_cap_and_a_mu_in_their_limits(answer):
    rule = hold("pacing", lambda step: answer)
    with pytest.raises(PluginError, match=r"staleness\.pacing: .* answered .* expected \(cap, mu\)"):
        rule(step(START))


def test_numbers_of_any_kind_become_floats():
    assert own.cap_and_mu((12, 0), ()) == (12.0, 0.0)
    assert hold("pacing", lambda step: (step.admission.cap + 1, 0))(step(START)) == (17.0, 0.0)
    assert PROMISES["pacing"].parameters == ("step",)


def test_the_cap_grows_while_groups_are_wanted_and_shrinks_while_stragglers_are_waited_for():
    view = AdmissionView(3, 8, 5, 4, 6, 2, 50, cap=16.0)
    grown = next_cap(view, starved=0.3, late=0.0, elasticity=0.8)
    assert grown > 16.0
    assert next_cap(view, starved=0.3, late=0.0, elasticity=0.0) < 16.0
    assert next_cap(view, starved=0.0, late=0.3, elasticity=0.8) < next_cap(
        view, starved=0.0, late=0.0, elasticity=0.8
    )
    assert next_cap(view._replace(cap=32.0), starved=0.9, late=0.0, elasticity=1.0) == 32.0


def test_a_trainer_that_waits_for_groups_for_a_thirtieth_of_its_time_gets_more():
    """Less than that it may wait: beyond, speed is lost that more groups would keep."""
    view = AdmissionView(3, 8, 5, 4, 6, 2, 50, cap=16.0)
    assert next_cap(view, starved=1 / 30, late=0.0, elasticity=0.8) > 16.0
    assert next_cap(view, starved=0.01, late=0.0, elasticity=0.8) < 16.0


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
