"""What failed lately: too many of it is said, and is not taken back until it is half as much."""

import pytest

from controller.core.state.recent_failures import (
    FEW_PULLS,
    FEW_RESPAWNS,
    MOST,
    PREEMPTED_SHARE,
    STEPS,
    WINDOW_S,
    Failure,
    Failures,
    Preemptions,
)


def failed(failures, *times, fleet=4):
    for at_s in times:
        failures.add(Failure(at_s, "rollout-0", "it broke"), fleet=fleet)


def test_a_few_failures_are_not_too_many_and_more_of_them_in_a_short_time_are():
    failures = Failures(FEW_RESPAWNS)
    failed(failures, *range(FEW_RESPAWNS - 1))
    assert failures.too_many(10.0) == []
    failed(failures, 10.0)
    assert [failure.at_s for failure in failures.too_many(10.0)] == [0, 1, 2, 3, 10.0]


def test_as_many_over_a_long_time_are_not():
    failures = Failures(FEW_PULLS)
    failed(failures, *(number * WINDOW_S for number in range(20)))
    assert failures.too_many(19 * WINDOW_S) == []


def test_a_large_fleet_may_have_more():
    failures = Failures(FEW_PULLS)
    failed(failures, *range(12), fleet=128)
    assert failures.too_many(12.0) == []
    failed(failures, 12.0, fleet=128)
    assert len(failures.too_many(12.0)) == 13


def test_what_was_too_many_stays_until_it_is_half_as_many_and_then_starts_over():
    failures = Failures(FEW_RESPAWNS)
    failed(failures, 0.0, 1.0, 2.0, 300.0, 301.0)
    assert len(failures.too_many(WINDOW_S + 1.5)) == 3
    assert failures.too_many(WINDOW_S + 2.5) == []
    failed(failures, WINDOW_S + 3, WINDOW_S + 4)
    assert failures.too_many(WINDOW_S + 4) == [], "four of them are few again"
    failed(failures, WINDOW_S + 5)
    assert len(failures.too_many(WINDOW_S + 5)) == 5


def test_what_is_remembered_does_not_grow_with_the_run():
    failures = Failures(FEW_PULLS)
    failed(failures, *range(10 * MOST), fleet=100_000)
    assert len(failures._seen) == MOST
    assert len(failures.too_many(10.0 * MOST)) == MOST, "however large the fleet is"


def preemptions(*per_step, trained=100):
    found, total = Preemptions(), 0
    for number, count in enumerate(per_step, 1):
        total += count
        found.step(total, number * trained)
    return found


def test_preemptions_are_judged_by_the_last_steps_and_not_before_there_are_enough():
    most = round(100 * PREEMPTED_SHARE)
    assert preemptions(*[most + 1] * (STEPS - 1)).too_many is None
    assert preemptions(*[most + 1] * STEPS).too_many == (STEPS * (most + 1), STEPS * 100)
    assert preemptions(*[most] * STEPS).too_many is None
    assert preemptions(0, 0, 0, 0, 0, 3 * most, 0, 0, 0).too_many is None


@pytest.mark.parametrize(("then", "is_raised"), [(4, True), (2, False)])
def test_preemptions_stay_too_many_until_they_are_half_as_many(then, is_raised):
    found = preemptions(*[10] * STEPS, *[then] * STEPS)
    assert (found.too_many is not None) is is_raised


def test_a_run_that_trains_on_nothing_that_was_sampled_has_none():
    assert preemptions(*[0] * 10, trained=0).too_many is None
