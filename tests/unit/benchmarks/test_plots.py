"""Plots can be read: whole numbers on the axes of what is counted, one axis of time, and cells told apart."""

import json
import re

import pytest

from benchmarks.coordination.report import curves
from benchmarks.picture import draw, ticks
from controller.simulation.compare import Cell, Row
from controller.simulation.records import Load
from controller.simulation.report import load_figure


def row(strategy, times, instances):
    running = [[1] * instances for _ in times]
    return Row(
        strategy, 1, (Cell(strategy, 1, 0, None, "", 0, Load(1.0, times, running, running)),), 1.0, 1.0, None
    )


def test_the_loads_of_strategies_share_their_time_and_instances_are_whole_numbers():
    pytest.importorskip("matplotlib").use("Agg")
    figure = load_figure([row("sync", [0.0, 50.0], 1), row("greedy", [0.0, 90.0], 4)])
    figure.canvas.draw()
    one, other, *_ = figure.axes
    assert one.get_xlim() == other.get_xlim() == (0.0, 90.0)
    for axes in (one, other):
        low, high = sorted(axes.get_ylim())
        shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
        assert shown
        assert all(tick == int(tick) for tick in shown)


def test_the_cells_of_a_strategy_are_one_curve_from_bound_to_bound():
    records = [
        {"rules": rules, "bound": bound, "staleness_mean": bound + seed, "trajectories_per_s": 1.0}
        for rules in ({"strategy": "a"}, {"strategy": "a", "in_flight_batches": "all"})
        for bound in (3, 1)
        for seed in (0.0, 0.2)
    ]
    assert curves(records) == [[(1, pytest.approx(1.1), 1.0), (3, pytest.approx(3.1), 1.0)]] * 2


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1, [0, 1]),
        (7, [*range(8)]),
        (140, [0, 20, 40, 60, 80, 100, 120, 140]),
        (10_000, [0, 2000, 4000, 6000, 8000, 10_000]),
    ],
)
def test_train_steps_are_named_at_round_numbers(last, expected):
    assert ticks(last) == expected


def test_the_picture_of_a_run_has_an_axis_of_train_steps():
    keys = ("reward/mean", "response_length/mean", "response_length/max", "staleness/mean", "staleness/max",
            "idle/trainer", "idle/rollout")  # fmt: skip
    lines = [{"step": step, **dict.fromkeys(keys, 0.5)} for step in (11, 12, 20)]
    summary = {"time_s": 9.0, "staleness/max_allowed": 2, "staleness/violations": 0}
    svg = draw(json.loads(json.dumps(lines)), summary)
    assert "train step</text>" in svg
    assert re.search(r'text-anchor="middle">20</text>', svg)
    (first, second, third) = re.findall(r"points=\"(\S+) (\S+) (\S+)\"", svg)[0]
    xs = [float(point.split(",")[0]) for point in (first, second, third)]
    assert (xs[2] - xs[1]) == pytest.approx(8 * (xs[1] - xs[0]), abs=0.2), "steps lie where they were made"
