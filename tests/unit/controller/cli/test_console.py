"""What the console says, line by line."""

import io
from pathlib import Path

from rich.console import Console as Terminal

from controller.cli.console import PlainConsole, RichConsole, make_console, step_line, verdict_lines

METRICS = {
    "step": 7,
    "reward/mean": 0.25,
    "loss": -0.01,
    "response_length/mean": 23.4,
    "staleness/mean": 0.5,
    "staleness/max": 2,
    "throughput/tokens_per_s": 4321.0,
    "idle/trainer": 0.4,
    "idle/rollout": 0.05,
}
SUMMARY = {
    "is_success": True,
    "steps": 80,
    "time_s": 125.0,
    "reward/first_steps": 0.2,
    "reward/last_steps": 0.8,
    "verdict": "Bound by rollout.",
}


class Clock:
    """Time that stands still until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(steps: int = 80) -> tuple[PlainConsole, list[str], Clock]:
    lines: list[str] = []
    clock = Clock()
    return PlainConsole(steps=steps, write=lines.append, clock=clock), lines, clock


def test_a_step_is_one_line():
    assert step_line(METRICS, steps=80, remaining_s=61.0) == (
        "step  7/80  reward 0.250  loss -0.0100  length 23  staleness 0.50  max 2  4,321 tokens/s  "
        "idle: trainer 40%  rollout 5%  ~1 min 1 s left"
    )


def test_a_reward_that_is_enormous_is_still_read_at_a_glance():
    line = step_line(METRICS | {"reward/mean": -1e30, "loss": 1e30}, steps=80, remaining_s=None)
    assert line.startswith("step  7/80  reward -1.00e+30  loss +1.00e+30  length")
    told = verdict_lines(
        SUMMARY | {"reward/first_steps": 1e30, "reward/last_steps": 2e12}, Path("runs/quickstart")
    )
    assert told[0].endswith(" Reward 1.00e+30 in the first steps, 2.00e+12 in the last.")


def test_what_was_not_reported_is_left_out():
    assert step_line({"step": 1, "loss": float("nan")}, steps=9, remaining_s=None) == "step 1/9"


def test_the_remaining_time_follows_the_pace():
    console, lines, clock = plain(steps=10)
    console.step({"step": 1})
    clock.now = 4.0
    console.step({"step": 3})
    assert "left" not in lines[0]
    assert lines[1].endswith("~14 s left")


def test_a_pause_is_no_part_of_the_pace():
    console, lines, clock = plain(steps=10)
    console.step({"step": 1})
    clock.now = 2.0
    console.step({"step": 2})
    clock.now = 604.0
    console.step({"step": 3, "phase/paused": 600 / 602})
    assert [line[-10:] for line in lines[1:]] == ["~16 s left", "~14 s left"]


def test_plain_progress_is_told_at_first_then_now_and_then_and_at_the_end():
    console, lines, clock = plain()
    for fraction in (0.0, 0.1, 0.2):
        console.progress(fraction, f"warm start, step {fraction}")
    clock.now = 5.0
    console.progress(0.3, "warm start, step 0.3")
    console.progress(1.0, "warm start, done")
    console.progress(None, "starting workers")
    assert lines == [
        "  0% warm start, step 0.0",
        " 30% warm start, step 0.3",
        "100% warm start, done",
        "starting workers",
    ]


def test_warnings_and_the_verdict_are_words():
    console, lines, _ = plain()
    console.warn("rollout-1 was lost.")
    console.finish(SUMMARY, Path("runs/nowhere"))
    assert lines[0] == "warning: rollout-1 was lost."
    assert lines[1:] == verdict_lines(SUMMARY, Path("runs/nowhere"))
    assert lines[1] == (
        "Done: 80 train steps in 2 min 5 s. Reward 0.200 in the first steps, 0.800 in the last."
    )
    assert lines[2] == "Bound by rollout."
    assert lines[3] == "Files: runs/nowhere"  # where nothing is


def test_where_the_data_ends_before_its_steps_the_verdict_says_what_was_left_over():
    reason = "The data ended after 80 train steps; 4 groups were left over, too few for a batch."
    summary = SUMMARY | {"reason": reason, "steps_wanted": 100}
    assert verdict_lines(summary, Path("runs/quickstart"))[1] == reason
    assert reason not in verdict_lines(summary | {"steps_wanted": 80}, Path("runs/quickstart"))
    assert reason not in verdict_lines(summary | {"is_success": False}, Path("runs/quickstart"))


def test_the_verdict_names_the_files_that_there_are(tmp_path):
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).touch()
    for name in ("logs", "checkpoints/.step_1.new"):
        (tmp_path / name).mkdir(parents=True)
    assert verdict_lines(SUMMARY, tmp_path)[-1] == f"Files: {tmp_path} (metrics.jsonl, summary.json, logs/)"
    (tmp_path / "checkpoints" / "step_1").mkdir()
    told = "(metrics.jsonl, summary.json, checkpoints/, logs/)"
    assert verdict_lines(SUMMARY, tmp_path)[-1] == f"Files: {tmp_path} {told}"


def test_the_live_console_keeps_every_step_as_a_line_and_takes_its_bar_away():
    out = io.StringIO()
    console = RichConsole(Terminal(file=out, force_terminal=True, width=160), steps=80)
    console.progress(0.5, "warm start")
    console.progress(None, "starting [workers]")
    console.step(METRICS)
    console.warn("[oops]")
    console.finish(SUMMARY, Path("runs/quickstart"))
    console.close()
    text = out.getvalue()
    assert "reward 0.250  loss -0.0100" in text
    assert "warning: [oops]" in text
    assert "starting [workers]" in text
    assert "Bound by rollout." in text


def test_output_that_is_no_terminal_gets_plain_lines(capsys):
    make_console("auto", steps=3).step({"step": 1})
    make_console("quiet", steps=3).step({"step": 2})
    assert capsys.readouterr().out == "step 1/3\n"
