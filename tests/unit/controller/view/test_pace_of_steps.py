"""What the newest steps say of a run's pace."""

import json

import pytest

from controller.config.load import change_config
from controller.view.pace_of_steps import MOST_STEPS, pace_of
from tests.support.shown_run import CONFIG, Browser, recorded

WANTED = CONFIG.model_copy(update={"run": CONFIG.run.model_copy(update={"steps": 60})})


def lines_of(count, *, step_s=lambda step: 2.0, **more):
    time_s, found = 0.0, []
    for step in range(1, count + 1):
        time_s += step_s(step)
        found.append({"step": step, "time_s": time_s, "reward/mean": step / 100, **more})
    return found


def recent(lines, step=99):
    return pace_of(lines, step, WANTED, cap=1.0)


def test_reward_and_speed_are_of_the_newest_steps():
    lines = lines_of(40, **{"throughput/tokens_per_s": 100.0})
    lines[-1] |= {"throughput/tokens_per_s": 200.0, "time_s": lines[-2]["time_s"] + 18}
    found = recent(lines)
    assert found["steps"] == MOST_STEPS
    assert found["reward"] == 0.4
    assert found["mean_reward"] == pytest.approx(0.355)
    assert found["tokens_per_s"] == pytest.approx((9 * 2 * 100 + 18 * 200) / 36)


def test_the_time_to_the_end_is_told_with_its_spread_and_narrows_where_steps_are_even():
    even = recent(lines_of(40), 40)
    assert (even["left_least_s"], even["left_s"], even["left_most_s"]) == (40.0, 40.0, 40.0)
    uneven = recent(lines_of(40, step_s=lambda step: 1.0 + 2 * (step % 2)), 40)
    assert uneven["left_s"] == pytest.approx(40.0)
    assert 0 < uneven["left_least_s"] < 40.0 < uneven["left_most_s"] < 80.0
    assert recent(lines_of(3), 3)["left_s"] is None
    assert recent(lines_of(60), 60)["left_s"] == 0


def test_a_pause_is_no_part_of_the_time_to_the_end():
    plain, paused = lines_of(40), lines_of(40, step_s=lambda step: 602.0 if step == 36 else 2.0)
    paused[35]["phase/paused"] = 600 / 602
    assert recent(plain, 40)["left_s"] == 40.0
    found = recent(paused, 40)
    assert [found[key] for key in ("left_least_s", "left_s", "left_most_s")] == pytest.approx([40.0] * 3)
    assert found["seconds"] == 640.0  # what the verdict is of has a word for pauses
    paused[35]["phase/paused"] = "x"
    assert recent(paused, 40)["left_s"] == pytest.approx(1240.0)


def test_only_steps_up_to_the_moment_that_is_shown_count():
    found = recent(lines_of(40), 12)
    assert found["reward"] == 0.12
    assert found["steps"] == 11
    assert found["left_s"] == pytest.approx(96.0)


def test_the_verdict_is_of_the_last_steps_alone():
    early = lines_of(30, **{"phase/training": 0.1, "phase/rollout": 0.9, "idle/rollout": 0.0})
    late = lines_of(60, **{"phase/training": 0.99, "phase/rollout": 0.01, "idle/rollout": 0.5})
    found = recent(early + late[30:])
    assert found["verdict"].startswith("Bound by training: the trainer was idle 1% of the time, rollout 50%")
    assert found["seconds"] == 40.0
    assert recent(early)["verdict"].startswith("Bound by rollout")


@pytest.mark.parametrize("bad", [None, "x", float("nan"), float("inf"), 1e308, -1e308, [], {}])
def test_what_is_no_number_does_not_count(bad):
    lines = lines_of(12)
    for line in lines:
        line |= {"reward/mean": bad, "throughput/tokens_per_s": bad, "phase/training": bad, "time_s": bad}
    found = recent(lines)
    assert (found["steps"], found["verdict"]) == (0, "")
    assert found["reward"] is found["mean_reward"] is found["tokens_per_s"] is found["left_s"] is None
    assert recent([])["steps"] == 0


def test_advice_goes_by_the_batches_that_may_be_in_the_system(tmp_path):
    """Of two batches, where the bound admits four; a batch has four groups."""
    run = recorded(tmp_path / "one", change_config(CONFIG, ["staleness.max_staleness=3"]))
    phases = {"phase/training": 0.3, "phase/cap": 0.7, "idle/rollout": 0.6}
    lines = lines_of(4, **phases)
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    _, found = Browser(run).json("/api/runs/0/now")
    assert "raise staleness.in_flight_batches" in found["pace"]["verdict"]
