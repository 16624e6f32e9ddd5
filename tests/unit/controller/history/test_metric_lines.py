"""Lines held as columns are the lines that they were; a thinned curve hides no peak, and nothing new."""

import random
import tracemalloc

import pytest

from controller.history.alarms import alarms
from controller.history.metric_lines import LINES_PER_POINT, OLDER, WHOLE, LineColumns

MANY = 30_000


def held(lines, most=200_000):
    columns = LineColumns(most)
    columns.add(lines)
    return columns.lines


def made(count):
    dice = random.Random(count)
    return [{"step": i, "time_s": 2.5 * i, "loss": dice.random()} for i in range(1, count + 1)]


def test_a_line_has_its_finite_numbers_and_nothing_else():
    odd = {"word": "x", "is": True, "map": {"b": 1}, "none": None}
    endless = {"b": float("inf"), "c": 10**400, "d": float("nan")}
    lines = held([{"step": 1, "a": 0.5} | odd, {"step": 2} | endless, {}, {"a": -0.25}])
    assert lines == [{"step": 1, "a": 0.5}, {"step": 2}, {}, {"a": -0.25}]
    assert isinstance(lines[0]["step"], int)
    assert "b" not in lines[1]
    assert lines[1].get("a") is None
    assert next(reversed(lines)) == {"a": -0.25}
    assert lines.column("a") == [0.5, None, None, -0.25]
    assert lines[1:3].column("step") == [2, None]
    assert lines.columns() == {"step": [1, 2, None, None], "a": [0.5, None, None, -0.25]}
    assert held([]).columns() == {}
    with pytest.raises(IndexError):
        lines[4]
    with pytest.raises(ValueError, match="follow each other"):
        lines[::2]


def test_who_holds_lines_keeps_them_while_others_come_and_the_oldest_go():
    columns = LineColumns(16)
    columns.add(made(10))
    first = columns.lines
    columns.add({"step": i, "new": i} for i in range(11, 41))
    assert first == made(10)
    assert columns.lines.column("step") == list(range(25, 41))
    assert columns.lines[0] == {"step": 25, "new": 25}
    columns.add([{"step": 41}])
    assert columns.lines.column("new") == [*range(26, 41), None]


def test_lines_up_to_a_step_are_those_even_where_steps_are_not_in_order():
    lines = held(made(50))
    assert lines.up_to(20) == made(50)[:20]
    assert lines.up_to(99) == lines
    assert len(lines.up_to(0)) == 0
    mixed = held([{"step": 3}, {"a": 1}, {"step": 1, "a": 2}])
    assert mixed.up_to(2) == [{"step": 1, "a": 2}]


def test_a_long_curve_has_some_two_thousand_points_with_every_peak_and_all_that_is_new():
    lines = made(MANY)
    lines[1_234]["loss"], lines[20_001]["loss"] = -50.0, 99.0
    for line in lines[:100]:
        del line["loss"]
    found = held(lines).columns()
    per_point = found.pop(LINES_PER_POINT)
    assert WHOLE <= len(per_point) <= 1.1 * (WHOLE + OLDER)
    assert sum(per_point) == MANY
    assert {len(column) for column in found.values()} == {len(per_point)}
    assert found["step"] == sorted(set(found["step"]))
    assert found["step"][0] == 1
    assert found["step"][-WHOLE:] == list(range(MANY - WHOLE + 1, MANY + 1))
    assert found["loss"][-WHOLE:] == [line["loss"] for line in lines[-WHOLE:]]
    assert found["loss"][0] is None
    for value, step in ((-50.0, 1_235), (99.0, 20_002)):
        place = found["loss"].index(value)
        assert abs(found["step"][place] - step) <= 2 * per_point[place]
    short = made(WHOLE + OLDER)
    assert held(short).columns()["loss"] == [line["loss"] for line in short]
    assert LINES_PER_POINT not in held(short).columns()


@pytest.mark.parametrize("count", [0, 3, 6, 60, 300])
def test_columns_raise_the_alarms_that_their_lines_raise(count):
    dice = random.Random(count)
    keys = ("reward/mean", "entropy", "grad_norm", "mismatch_kl", "phase/scoring", "response_length/mean",
            "response_length/cut", "skipped_steps", "groups/equal_rewards", "tokens/generated", "tokens/lost",
            "engine/temperature", "engine/temperature_error", "engine/fresh_kl", "engine/fresh_tokens",
            "reward/std", "staleness/max")  # fmt: skip
    seen = set()
    for _ in range(60):
        scales = {key: dice.choice([0.01, 0.3, 1, 50, 10_000]) for key in keys}
        lines = [
            {
                key: scales[key] * dice.random() * (dice.random() < 0.9)
                for key in keys
                if dice.random() < 0.98 or key.startswith("engine/")
            }
            | {"step": i}
            for i in range(count)
        ]
        expected = alarms(lines, bound=2)
        assert alarms(held(lines), bound=2) == expected
        seen |= {alarm.name for alarm in expected}
    assert len(seen) > 4 or count < 6


def test_long_runs_are_held_in_little_memory():
    lines = ({f"key{i}": 0.001 * i + step for i in range(60)} for step in range(3_000))
    tracemalloc.start()
    kept = held(lines)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept) == 3_000
    assert peak < 16 * 60 * 3_000, size
