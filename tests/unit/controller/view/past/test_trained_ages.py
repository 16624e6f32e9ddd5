"""How old what was trained was: the core's own counts, and the tokens beside them."""

import pytest

from controller.core.commands import ReportStep
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.past.trained_ages import MOST_AGES, MOST_COLUMNS, TrainedAges, ages_of
from protocol.messages import GIVEN
from protocol.messages.from_controller import TrainItem
from protocol.messages.pieces import Segment
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG


def item(*segments):
    return TrainItem(1, 0, 5, 1.0, 0.0, "stop", tuple(Segment(1, *segment) for segment in segments))


def test_a_trajectory_is_as_old_as_its_first_token_and_tokens_are_as_old_as_they_are():
    items = (item((3, 10), (5, 2)), item((5, 4)), item((GIVEN, 7), (4, 1)), item())
    assert ages_of(items, 5) == ({2: 1, 0: 1, 1: 1}, {2: 10, 0: 6, 1: 1})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Ages, lines of metrics and tokens trained of a run."""
    path = tmp_path_factory.mktemp("ages") / "run"
    record(path, CONFIG)
    ages, lines = TrainedAges(), []
    with Recording(path) as recording:
        core = recording.make_core()
        for turn in turns(recording, core):
            ages.take(turn)
            lines += [command.metrics for command in turn.commands if isinstance(command, ReportStep)]
    return ages, lines, core


def test_trajectories_are_those_of_the_metrics_and_tokens_those_that_were_trained(run):
    ages, lines, core = run
    found = ages.columns()
    assert found["steps"] == [[line["step"]] * 2 for line in lines]
    for line, column in zip(lines, found["trajectories"], strict=True):
        assert {str(age): count for age, count in enumerate(column) if count} == line["staleness/hist"]
    assert sum(map(sum, found["tokens"])) == core.state.accounts.tokens().trained
    assert len({len(column) for column in found["tokens"] + found["trajectories"]}) == 1


def test_many_steps_are_told_in_parts_and_very_old_ones_with_the_last_age():
    ages = TrainedAges()
    ages.take_over([[step, {step % 40: 2}, {0: 5}] for step in range(1, 1001)])
    found = ages.columns()
    assert len(found["steps"]) <= MOST_COLUMNS
    assert found["steps"][0] == [1, 5]
    assert found["steps"][-1] == [996, 1000]
    assert {len(column) for column in found["trajectories"]} == {MOST_AGES}
    assert found["is_cut"]
    assert sum(map(sum, found["trajectories"])) == 2000
    assert sum(column[0] for column in found["tokens"]) == 5000


def test_what_was_known_is_taken_over(run):
    ages, _, _ = run
    other = TrainedAges()
    other.take_over(ages.as_plain())
    assert other.columns() == ages.columns()


def test_before_the_first_batch_there_is_nothing():
    assert TrainedAges().columns() == {"steps": [], "is_cut": False, "trajectories": [], "tokens": []}
