"""What kept the next prompt from starting: one rule at a time, by seconds, over the last steps."""

import pytest

from controller.config.sections.staleness import StalenessSettings
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.view.past.starts import MOST_STEPS, RULES, Starts, why_no_more
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG


def walked(path, config=CONFIG):
    """A run's starts, and by hand: its seconds by rule, and when each step was finished."""
    record(path, config)
    by_hand, finished, before, rule = {}, [], 0.0, None
    with Recording(path) as recording:
        core = recording.make_core()
        starts, rule = Starts(core), why_no_more(core)
        for turn in turns(recording, core):
            starts.take(core)
            by_hand[rule] = by_hand.get(rule, 0.0) + core.state.now - before
            before, rule = core.state.now, why_no_more(core)
            finished += [core.state.now] * (core.state.steps - len(finished))
            assert turn
    return starts, {rule: seconds for rule, seconds in by_hand.items() if seconds > 0}, finished, core


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return walked(tmp_path_factory.mktemp("starts") / "run")


def test_the_seconds_of_all_rules_are_those_that_went_by(run):
    starts, by_hand, _, core = run
    found = starts.seconds(0.0, core.state.now)
    assert found == pytest.approx(by_hand)
    assert sum(found.values()) == pytest.approx(core.state.now)
    assert set(found) <= set(RULES)
    assert found["bound"] > 0, "the quickstart's bound is what keeps it"
    half = core.state.now / 2
    one, other = starts.seconds(0.0, half), starts.seconds(half, core.state.now)
    assert {rule: one.get(rule, 0) + other.get(rule, 0) for rule in found} == pytest.approx(found)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"max_staleness": 0}, "bound"),
        ({"max_staleness": 4, "in_flight_batches": 1}, "cap"),
        ({"max_staleness": 8, "in_flight_batches": "all"}, "capacity"),
    ],
)
def test_each_rule_is_told_where_it_holds(tmp_path, settings, rule):
    staleness = StalenessSettings(**settings)
    rollout = CONFIG.rollout.model_copy(update={"max_running": 2} if rule == "capacity" else {})
    config = CONFIG.model_copy(update={"staleness": staleness, "rollout": rollout})
    _, by_hand, _, _ = walked(tmp_path / "run", config)
    assert by_hand.get(rule, 0.0) == max(by_hand.values()), by_hand


def test_a_rule_that_held_for_no_time_is_none(tmp_path):
    record(tmp_path / "run", CONFIG)
    with Recording(tmp_path / "run") as recording:
        core = recording.make_core()
    starts = Starts(core)
    for now, paused in (
        (0.0, "lunch"),
        (0.0, None),
        (2.0, "lunch"),
        (2.0, None),
        (3.0, "lunch"),
        (5.0, None),
    ):
        core.state.now, core.state.paused = now, paused
        starts.take(core)
    assert list(starts.begins) == [0.0, 3.0, 5.0]
    assert starts.seconds(0.0, 6.0) == {"weights": 4.0, "paused": 2.0}


def test_the_last_steps_are_told_one_by_one_and_what_goes_on_behind_them(run):
    starts, _, finished, core = run
    told = starts.last_steps(core.state.now)
    assert [one["step"] for one in told["steps"]] == [1, 2, 3, 4, 5]
    for (begin, end), one in zip(
        zip([0.0, *finished], [*finished, core.state.now], strict=True), told["steps"], strict=True
    ):
        assert sum(one["seconds"].values()) == pytest.approx(end - begin)
    assert told["seconds"] == pytest.approx(starts.seconds(0.0, core.state.now))
    earlier = starts.last_steps((finished[0] + finished[1]) / 2)
    assert [one["step"] for one in earlier["steps"]] == [1, 2]
    assert earlier["end_s"] == (finished[0] + finished[1]) / 2


def test_of_a_long_run_the_last_steps_alone_are_told(run):
    _, _, _, core = run
    starts = Starts(core)
    starts.finished.extend(core.state.now + number for number in range(1, 101))
    told = starts.last_steps(core.state.now + 50)
    assert len(told["steps"]) == MOST_STEPS + 1
    assert (told["begin_s"], told["end_s"]) == (core.state.now + 30, core.state.now + 50)


def test_what_was_known_is_taken_over(run):
    starts, _, _, core = run
    other = Starts(core)
    other.take_over(starts.as_plain())
    assert other.last_steps(core.state.now) == starts.last_steps(core.state.now)
