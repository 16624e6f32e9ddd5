"""An engine at another temperature, or with a cut distribution, is worth a sentence; rounding is not."""

import pytest

from controller.core.decisions.training.logprob_drift import LogprobDrift
from protocol.messages import GroupScored, TrainStepFinished
from tests.support.core_run import Run

SOUND = {
    "logprob_gap_p99": 0.1,
    "engine/temperature": 1.0, "engine/temperature_error": 0.001, "engine/fresh_tokens": 5000.0,
    "engine/cut": 0.0, "engine/cut_error": 0.001,
}  # fmt: skip


def warnings(*changes):
    drift = LogprobDrift(1.0)
    return [drift.observe(step, SOUND | change) for step, change in enumerate(changes)]


def test_another_temperature_is_said_once_until_it_was_gone():
    cold = {"engine/temperature": 0.9}
    first, again, sound, later = warnings(cold, cold, {}, cold)
    assert "0.90 (± 0.00) times the trainer's temperature" in first
    assert "rollout.sampling.temperature" in first
    assert again is sound is None
    assert later.startswith("Step 3: ")


def test_a_cut_distribution_is_said_with_the_keys_that_cut():
    (words,) = warnings({"engine/cut": 0.235})
    assert "76.5%" in words
    assert "what else the engine leaves out" in words


def test_errors_of_few_tokens_are_no_drift():
    assert warnings({"engine/temperature": 0.9, "engine/temperature_error": 0.02}) == [None]
    assert warnings({"engine/temperature": 0.5, "engine/fresh_tokens": 50.0}) == [None]
    assert warnings({"engine/cut": 0.03, "engine/cut_error": 0.01}) == [None]


def test_what_half_precision_makes_is_no_drift():
    assert (
        warnings({"engine/temperature": 1.02, "engine/cut": 0.01}, {"engine/temperature": 0.98}) == [None] * 2
    )


def test_a_batch_without_fresh_tokens_does_not_end_the_drift():
    cold, stale = {"engine/temperature": 0.9}, {"engine/fresh_tokens": 0.0}
    assert [bool(words) for words in warnings(cold, stale, cold)] == [True, False, False]


def test_two_kinds_at_once_are_two_lines():
    (words,) = warnings({"logprob_gap_p99": 1.5, "engine/cut": 0.3})
    assert len(words.splitlines()) == 2


def test_a_cut_explains_what_looks_like_another_temperature():
    (words,) = warnings({"engine/temperature": 0.95, "engine/cut": 0.3})
    assert "times the trainer's temperature" not in words


def test_a_policy_that_is_certain_of_every_token_has_no_temperature_but_that_of_rounding():
    cold = {"engine/temperature": 0.9}
    rounding, sampled = warnings(cold | {"engine/fresh_kl": 1e-11}, cold | {"engine/fresh_kl": 1e-3})
    assert rounding is None
    assert "0.90" in sampled


def test_weights_so_far_off_that_no_temperature_fits_break_nothing():
    (told,) = warnings({"engine/fresh_kl": 5.0})
    assert told is None
    drift = LogprobDrift(1.0)
    assert drift.observe(1, {"engine/fresh_kl": 5.0, "engine/fresh_tokens": 5000.0}) is None


FIGURES = [name for name in SOUND if name.startswith("engine/")]


@pytest.mark.parametrize("left_out", FIGURES)
def test_a_trainer_that_leaves_out_one_figure_of_a_kind_says_nothing_about_that_kind(left_out):
    drift = LogprobDrift(1.0)
    bad = SOUND | {"engine/temperature": 0.9, "engine/cut": 0.3}
    told = drift.observe(1, {name: value for name, value in bad.items() if name != left_out})
    assert ("distribution, as if the rest were cut off" in told) is ("cut" not in left_out)
    assert ("times the trainer's temperature" in told) is ("cut" in left_out)


@pytest.mark.parametrize("name", FIGURES)
def test_a_trainer_that_reports_one_figure_alone_stays_in_the_run(name):
    run = Run(trainer={"batch_groups": 1}, run={"steps": 9})
    for route in run.start_groups(1):
        run.generate(route, 3)
    run.say("reward-0", GroupScored(0, 1, (1.0, 0.0)))
    run.say("trainer", TrainStepFinished(1, 0.1, ((name, 1.0),)))
    assert run.core.state.steps == 1
