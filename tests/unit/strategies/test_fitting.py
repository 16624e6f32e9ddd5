"""The cost model is learned from noisy status reports, followed when it moves, and never absurd."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.messages import InstanceStatus
from strategies.cost_model import QWEN_7B_TP1, prefill_s, scaled, step_latency
from strategies.fitting import MAX_BINS, RING, OnlineFit
from tests.support.status_reports import (
    IDLE,
    LINEAR,
    MACHINES,
    TINY,
    Reports,
    constant,
    errors,
    learn,
    three_sizes,
    wide,
)


@pytest.mark.parametrize("load", [wide, three_sizes, constant])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("outliers", [0.0, 0.02])
def test_300_noisy_reports_predict_the_observed_loads_within_5_percent(machine, load, outliers):
    for seed in range(4):
        fit, reports = OnlineFit(), Reports(seed, outliers=outliers)
        learn(fit, reports, MACHINES[machine], load, 300)
        assert fit.observations == 300
        found = errors(fit, MACHINES[machine], load)
        assert sum(found) / len(found) < 0.03
        assert sorted(found)[-15] < 0.05  # 95 % of the loads
        assert max(found) < 0.08


@pytest.mark.parametrize("load", [wide, three_sizes, constant])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_speed_is_followed(load, factor):
    for seed in range(4):
        fit, reports = OnlineFit(), Reports(seed, outliers=0.02)
        learn(fit, reports, QWEN_7B_TP1, load, 400)
        slower = scaled(QWEN_7B_TP1, decode=factor, prefill=1.0)
        learn(fit, reports, slower, load, 300)
        found = errors(fit, slower, load)
        assert sum(found) / len(found) < 0.04


def test_what_a_changed_machine_would_do_at_loads_of_the_past_is_known_too():
    fit, reports = OnlineFit(), Reports(1)
    learn(fit, reports, QWEN_7B_TP1, wide, 400)
    slower = scaled(QWEN_7B_TP1, decode=2.0, prefill=1.0)
    learn(fit, reports, slower, constant, 200)
    assert sum(errors(fit, slower, wide)) / 300 < 0.08


def test_the_error_falls_with_the_number_of_reports():
    curve = []
    for count in (0, 10, 50, 300):
        fit = OnlineFit()
        learn(fit, Reports(7), LINEAR, wide, count)
        curve.append(sum(errors(fit, LINEAR, wide)) / 300)
    assert curve[2:] == sorted(curve[2:], reverse=True)
    assert curve[0] > 0.5
    assert curve[2] < 0.06
    assert curve[3] < 0.03


def test_the_running_error_is_that_of_predicting_ahead():
    fit, reports = OnlineFit(), Reports(3, noise=0.0)
    assert fit.error is None
    learn(fit, reports, TINY, constant, 1)
    true, start = step_latency(TINY, 8, 12_000), step_latency(QWEN_7B_TP1, 8, 12_000)
    assert fit.error == pytest.approx((start - true) / true)
    learn(fit, reports, TINY, constant, 600)
    assert fit.error == pytest.approx(0.0, abs=0.005)


def test_before_there_is_enough_evidence_the_start_is_scaled_to_what_was_seen():
    fit, reports = OnlineFit(), Reports(3, noise=0.0)
    learn(fit, reports, scaled(QWEN_7B_TP1, decode=0.25, prefill=1.0), wide, 5)
    assert fit.coefficients[:5] == pytest.approx([value / 4 for value in QWEN_7B_TP1[:5]])


def test_a_single_batch_size_leaves_the_rest_to_the_scaled_start():
    fit, reports = OnlineFit(), Reports(3)
    learn(fit, reports, scaled(QWEN_7B_TP1, decode=0.25, prefill=1.0), constant, 300)
    for running in (1, 64, 128):
        expected = step_latency(QWEN_7B_TP1, running, running * 1500) / 4
        assert step_latency(fit.coefficients, running, running * 1500) == pytest.approx(expected, rel=0.05)


def test_an_engine_that_does_not_say_what_its_steps_read_is_fitted_from_what_it_holds():
    fit, reports = OnlineFit(), Reports(5)
    for _ in range(300):
        running, tokens = wide(reports.random)
        reports.next(QWEN_7B_TP1, running, tokens, context=False)
        before = reports.last
        fit.observe(before, reports.next(QWEN_7B_TP1, running, tokens, context=False))
    assert sum(errors(fit, QWEN_7B_TP1, wide)) / 300 < 0.03


def test_prefill_is_the_start_scaled_to_the_seconds_reported():
    fit, reports = OnlineFit(), Reports(5)
    learn(fit, reports, QWEN_7B_TP1, wide, 100)
    assert prefill_s(fit.coefficients, 500) == pytest.approx(3 * prefill_s(QWEN_7B_TP1, 500), rel=0.15)


def test_reports_without_a_step_and_of_a_restarted_process_teach_nothing():
    fit, reports = OnlineFit(), Reports(2)
    report = reports.next(TINY, 4, 400)
    fit.observe(report, report)
    fit.observe(report, IDLE)
    assert (fit.observations, fit.error, fit.coefficients) == (0, None, QWEN_7B_TP1)


def test_evidence_is_bounded_and_equal_reports_give_equal_fits():
    fits = [OnlineFit(), OnlineFit()]
    for fit in fits:
        learn(fit, Reports(11), QWEN_7B_TP1, wide, 3000)
    assert fits[0].coefficients == fits[1].coefficients
    assert len(fits[0]._bins) <= MAX_BINS
    assert all(len(bin.ring) <= RING for bin in fits[0]._bins.values())


counts = st.integers(0, 2**40)
seconds = st.floats(0, 1e6)
increments = st.tuples(counts, counts, counts, counts, seconds, counts, seconds, counts)
small = st.tuples(*[st.integers(0, 3)] * 4, st.floats(0, 2), st.integers(0, 3), st.floats(0, 2), counts)


@given(st.lists(st.one_of(increments, small), max_size=60))
@settings(max_examples=150)
def test_any_monotone_counters_give_coefficients_that_an_engine_can_have(steps):
    reports, fit = [IDLE], OnlineFit()
    for number, (running, resident, steps_, tokens, time, prompts, prefill, context) in enumerate(steps):
        last = reports[-1]
        reports.append(InstanceStatus(
            number, 0, running, 0, resident, last.decode_steps + steps_, last.decode_tokens + tokens,
            last.decode_s + time, last.prefill_tokens + prompts, last.prefill_s + prefill,
            last.decode_context + context, 0, (),
        ))  # fmt: skip
    for before, after in pairwise(reports):
        fit.observe(before, after)
        assert all(0 <= value < float("inf") for value in fit.coefficients)
        assert step_latency(fit.coefficients, 1, 0) > 0
