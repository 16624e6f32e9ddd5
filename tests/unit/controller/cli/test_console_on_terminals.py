"""A terminal of any usual width shows a train step on one line, each phase has a bar of its own, and what is
left is estimated from the last steps."""

import io
import re
from itertools import pairwise

import pytest
from rich.console import Console as Terminal

from controller.cli.console import PlainConsole, RichConsole, step_line
from tests.unit.controller.cli.test_console import METRICS, Clock

LONG = METRICS | {
    "step": 10_000, "reward/mean": -12.345, "throughput/tokens_per_s": 1_234_567.0,
    "response_length/mean": 12_345.0,
}  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
@pytest.mark.parametrize("metrics", [METRICS, LONG])
def test_a_step_fits_the_terminal(width, metrics):
    line = step_line(metrics, steps=10_000, remaining_s=360_000.0, width=width)
    assert len(line) <= width
    assert line.startswith("step ")
    assert "reward" in line, "what matters most is left out last"


def test_more_is_told_where_there_is_more_room():
    lines = [step_line(METRICS, steps=80, remaining_s=61.0, width=width) for width in (60, 80, 100, 120, 160)]
    told = [set(re.findall(r"[a-z/]{4,}", line)) for line in lines]
    assert all(less <= more for less, more in pairwise(told))
    assert lines[-1] == step_line(METRICS, steps=80, remaining_s=61.0)
    assert lines[1] == "step  7/80  reward 0.250  staleness 0.50  max 2  4,321 tokens/s  ~1 min 1 s left"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_wraps_on_a_terminal(width):
    out = io.StringIO()
    console = RichConsole(Terminal(file=out, force_terminal=True, width=width), steps=10_000)
    console.step(LONG | {"step": 9_998})
    out.seek(0), out.truncate()
    console.step(LONG | {"step": 9_999})
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    (line,) = [line.strip() for line in plain.splitlines() if "reward" in line]
    assert len(line) <= width
    assert line.startswith("step  9999/10000")
    console.close()


def live(width=100, steps=60):
    clock = Clock()
    console = RichConsole(
        Terminal(file=io.StringIO(), force_terminal=True, width=width), steps=steps, clock=clock
    )
    return console, clock


def task_of(console):
    (task,) = console._bar.tasks
    return task


def test_each_phase_has_a_bar_of_its_own_and_no_made_up_end():
    console, _ = live()
    console.progress(0.0, "model: loading task.py:make_model")
    loading = task_of(console)
    assert loading.total is None, "nobody knows how long that takes: it spins"
    assert loading.fields["count"] == ""
    console.progress(0.5, "model: warm start, step 500/1000")
    assert task_of(console).id == loading.id
    assert task_of(console).fields["count"] == "50%"
    console.progress(0.25, "workers: reward-0 is ready (1 of 4)")
    workers = task_of(console)
    assert workers.id != loading.id, "its time starts over"
    assert (workers.fields["count"], workers.fields["left"]) == ("25%", "")
    console.progress(1.0, "workers: trainer is ready (4 of 4)")
    first = task_of(console)
    assert first.description == "training: the first step"
    assert first.total is None
    console.step(METRICS | {"step": 1})
    assert task_of(console).id == first.id
    assert (task_of(console).total, task_of(console).fields["count"]) == (60, "1/60")
    console.close()


def test_the_bar_tells_the_same_time_left_as_the_line():
    console, clock = live(steps=10)
    console.step(METRICS | {"step": 1})
    clock.now = 4.0
    console.step(METRICS | {"step": 2})
    assert task_of(console).fields["left"] == "~32 s left"
    console.close()


def test_the_time_left_follows_a_machine_that_became_slower():
    lines: list[str] = []
    clock = Clock()
    console = PlainConsole(steps=100, write=lines.append, clock=clock)
    for step in range(1, 46):
        clock.now += 1.0
        console.step({"step": step})
    for step in range(46, 61):
        clock.now += 4.0
        console.step({"step": step})
    left_s = re.search(r"~(?:(\d+) min )?(\d+) s left", lines[-1])
    assert left_s
    assert 60 * int(left_s[1] or 0) + int(left_s[2]) == pytest.approx(4.0 * 40, rel=0.1)
