"""When a growing gap between engine and trainer is worth a sentence."""

from controller.core.decisions.training.logprob_drift import LogprobDrift


def warnings(gaps, threshold=1.0):
    drift = LogprobDrift(threshold)
    found = [
        drift.observe(step, {"logprob_gap_p99": gap, "mismatch_kl": 0.1}) for step, gap in enumerate(gaps)
    ]
    return [step for step, warning in enumerate(found) if warning]


def test_a_gap_above_the_threshold_is_said_once_until_it_was_gone():
    assert warnings([0.1, 1.5, 2.0, 0.1, 3.0]) == [1, 4]


def test_a_gap_that_is_suddenly_many_times_the_usual_one_is_said():
    assert warnings([0.05] * 10 + [0.24, 0.26, 0.05]) == [11]


def test_rounding_is_no_drift_and_neither_is_a_slow_rise():
    assert warnings([1e-6] * 10 + [0.01, 0.015]) == []
    assert warnings([0.01 * 1.05**step for step in range(80)]) == []


def test_a_trainer_without_the_metric_says_nothing():
    assert LogprobDrift(1.0).observe(1, {"loss": 0.0}) is None


def test_the_words_name_the_values_and_what_to_look_at():
    warning = LogprobDrift(0.5).observe(7, {"logprob_gap_p99": 0.8, "mismatch_kl": 0.03})
    assert "Step 7: " in warning
    assert "more than 0.8" in warning
    assert "mismatch_kl 0.03" in warning
    assert "expected 0.5 (trainer.logprob_gap_warning) at most" in warning
    assert "model.dtype" in warning


def test_a_sudden_gap_is_told_with_the_median_and_how_many_steps_it_is_of():
    drift = LogprobDrift(1.0)
    for step in range(12):
        assert drift.observe(step, {"logprob_gap_p99": 0.05}) is None
    warning = drift.observe(12, {"logprob_gap_p99": 0.9})
    assert warning is not None
    assert "expected about 0.05, the median of the last 12 steps" in warning
