"""How right the predictions of the next batch were."""

import pytest

from controller.core.commands import Send
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.critical_path import awaited_groups, batch_left_s
from controller.view.past.predictions import MOST, Predictions
from protocol.messages import Train
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG

LONG = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"steps": 40})})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Predictions of a run; by hand: what was said when a version was there, and when its batch was sent."""
    path = tmp_path_factory.mktemp("predictions") / "run"
    record(path, LONG)
    by_hand, said, steps, wanted = [], None, 0, False
    with Recording(path) as recording:
        core = recording.make_core()
        predictions = Predictions(core)
        for turn in turns(recording, core):
            predictions.take(turn, core)
            sent = [one for one in turn.commands if isinstance(one, Send) and isinstance(one.message, Train)]
            if sent and said is not None:
                by_hand.append((core.state.now, said[1], core.state.now - said[0]))
            said = None if sent else said
            wanted = not sent and (wanted or core.state.steps != steps)
            steps = core.state.steps
            if wanted and core.state.versions.newest.policy_version >= steps:
                wanted, left_s = False, batch_left_s(core, awaited_groups(core))
                said = None if left_s is None else (core.state.now, left_s)
    return predictions, by_hand, core


def test_a_prediction_is_held_against_the_batch_that_the_trainer_waited_for(run):
    predictions, by_hand, _ = run
    found = list(zip(predictions.at_s, predictions.predicted_s, predictions.actual_s, strict=True))
    assert found == by_hand
    assert len(found) > 5
    assert all(actual > 0 for _, _, actual in found)


def test_the_last_ones_up_to_a_moment_are_told_with_their_mean_error(run):
    predictions, by_hand, core = run
    told = predictions.until(core.state.now)
    last = by_hand[-MOST:]
    assert told["predictions"] == len(last)
    assert told["error_s"] == pytest.approx(sum(abs(one - other) for _, one, other in last) / len(last))
    assert told["mean_s"] == pytest.approx(sum(other for _, _, other in last) / len(last))
    assert told["error_s"] < told["mean_s"] / 2, "it is worth something"
    assert predictions.until(by_hand[2][0])["predictions"] == 3
    assert predictions.until(0.0) == {"predictions": 0, "error_s": 0.0, "mean_s": 0.0}


def test_what_was_known_is_taken_over(run):
    predictions, _, core = run
    other = Predictions(core)
    other.take_over(predictions.as_plain())
    assert other.as_plain() == predictions.as_plain()
    assert other.until(core.state.now) == predictions.until(core.state.now)
