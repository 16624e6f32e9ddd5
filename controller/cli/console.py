"""Shows a run on the console: progress from the first second, one line per train step, and a verdict.

Invariants: the console only shows; on a terminal the last line is a live bar, one for each phase, and a train
step takes one line; elsewhere every line is plain text; control characters in texts of data and workers never
reach the terminal.
"""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console as Terminal
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from protocol.plain_text import plain, plain_line

PLAIN_PROGRESS_S = 5.0  # least seconds between two plain lines about the same activity
MEMORY = 2 / 11  # weight of the last step in the pace: about ten steps count
LEAST_WIDTH = 40  # of a terminal; a narrower one wraps

Metrics = Mapping[str, Any]


class Console(Protocol):
    """The output of a run for a person."""

    def progress(self, fraction: float | None, text: str) -> None:
        """Show progress before the first step; `fraction` is None if it is not known."""
        ...

    def step(self, metrics: Metrics) -> None:
        """Show a finished train step, by its line of metrics.jsonl."""
        ...

    def evaluation(self, metrics: Metrics) -> None:
        """Show a complete evaluation, by its line of evaluations.jsonl."""
        ...

    def warn(self, text: str) -> None:
        """Show a warning."""
        ...

    def note(self, text: str) -> None:
        """Show a line that is no warning."""
        ...

    def finish(self, summary: Metrics, run_dir: Path) -> None:
        """Show how the run ended, by its totals as in summary.json."""
        ...

    def close(self) -> None:
        """Restore the terminal, however the run ended."""
        ...


class _Terminal(Terminal):
    def on_broken_pipe(self) -> None:
        """Raise the error again, where rich would end the process."""
        raise  # it is called where the error is handled


def make_console(mode: Literal["auto", "rich", "plain", "quiet"], *, steps: int) -> Console:
    """The console that `logging.console` asks for."""
    if mode == "quiet":
        return PlainConsole(steps=steps, write=lambda line: None)
    terminal = _Terminal(stderr=False, force_terminal=True if mode == "rich" else None, highlight=False)
    if mode == "rich" or (mode == "auto" and terminal.is_terminal):
        return RichConsole(terminal, steps=steps)
    return PlainConsole(steps=steps)


KEYS = (
    ("reward", ("reward {:.3f}", "reward/mean")),
    ("loss", ("loss {:+.4f}", "loss")),
    ("perplexity", ("perplexity {:.3f}", "perplexity")),
    ("length", ("length {:.0f}", "response_length/mean")),
    ("staleness", ("staleness {:.2f}", "staleness/mean"), ("max {:.0f}", "staleness/max")),
    ("rate", ("{:,.0f} tokens/s", "throughput/tokens_per_s")),
    ("idle", ("idle: trainer {:.0%}", "idle/trainer"), ("rollout {:.0%}", "idle/rollout")),
)
"""Parts of a step's line, in order: a name, and texts with their keys in metrics.jsonl."""
UNUSUAL = 1e9
LEAVE_OUT = ("length", "loss", "idle", "staleness", "rate", "left")
"""Parts that a narrow terminal leaves out, the first one first."""


def step_line(metrics: Metrics, *, steps: int, remaining_s: float | None, width: int | None = None) -> str:
    """One train step in one line; metrics that the trainer did not report are left out.

    `width`: most characters, for which parts are left out in the order of LEAVE_OUT.
    """
    parts = {"step": f"step {metrics['step']:>{len(str(steps))}}/{steps}"}
    for name, *texts in KEYS:
        shown = [in_short(form, metrics[key]) for form, key in texts if _is_number(metrics.get(key))]
        if shown:
            parts[name] = "  ".join(shown)
    if remaining_s is not None:
        parts["left"] = f"~{_duration(remaining_s)} left"
    for name in LEAVE_OUT:
        if width is None or len("  ".join(parts.values())) <= width:
            break
        parts.pop(name, None)
    return "  ".join(parts.values())


def in_short(form: str, value: float) -> str:
    """Format a number; from UNUSUAL on in powers of ten, as a reward may be any number."""
    if abs(value) < UNUSUAL:
        return form.format(value)
    begin, _, rest = form.partition("{")
    sign = "+" if rest.startswith(":+") else ""
    return f"{begin}{value:{sign}.2e}{rest.partition('}')[2]}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def brief(text: str) -> str:
    """The first line of a warning; the rest is in the log."""
    first, newline, _ = text.partition("\n")
    return f"{first.rstrip()} (more in logs/controller.log)" if newline else text


def evaluation_line(metrics: Metrics) -> str:
    """One evaluation in one line: everything first, then by data source if there are several."""
    sources: Mapping[str, Metrics] = metrics["sources"]
    parts = [f"evaluation of version {metrics['policy_version']}", _figures(metrics)]
    if len(sources) > 1:
        parts += [f"{source}: {_figures(figures)}" for source, figures in sources.items()]
    if metrics["failed"]:
        parts.append(f"{metrics['failed']} prompts failed")
    return "  ".join([*parts, _duration(metrics["time_s"])])


def _figures(metrics: Metrics) -> str:
    if not metrics["prompts"]:
        return "no prompt answered"
    passes = [key for key in metrics if key.startswith("pass@") and key[5:].isdigit()]
    shown = [f"{key} {metrics[key]:.3f}" for key in dict.fromkeys((passes[0], passes[-1]))]
    return "  ".join([*shown, in_short("reward {:.3f}", metrics["reward/mean"])])


FILES = {
    "metrics.jsonl": "metrics.jsonl",
    "summary.json": "summary.json",
    "checkpoints/": "checkpoints/step_*",
    "logs/": "logs",
}
"""Files of a run that are named at its end if they exist, and the patterns that find them."""


def verdict_lines(summary: Metrics, run_dir: Path) -> list[str]:
    """The end of a run in words: how it ended, the reward, what it waited for, and its files."""
    steps, took = summary.get("steps", 0), _duration(summary.get("time_s", 0.0))
    ended = "Done" if summary.get("is_success", True) else "Ended"
    lines = [f"{ended}: {steps} train step{'s' * (steps != 1)} in {took}."]
    if summary.get("ending") == "stopped":
        wanted = summary["steps_wanted"]
        lines[0] = f"Stopped after {steps} of {wanted} train steps at your request. The same command goes on."
    elif summary.get("is_success", True) and steps < summary.get("steps_wanted", steps):
        lines.append(str(summary.get("reason", "")))
    first, last = summary.get("reward/first_steps"), summary.get("reward/last_steps")
    if first is not None and last is not None:
        lines[0] += in_short(" Reward {:.3f} in the first steps,", first) + in_short(
            " {:.3f} in the last.", last
        )
    lines.append(_evaluations_in_words(summary))
    lines.append(str(summary.get("verdict", "")))
    if late := summary.get("staleness/violations", 0):
        bound = summary.get("staleness/max_allowed")
        lines.append(
            f"{late} trajectories were older than max_staleness {bound}: these rules do not promise it."
        )
    lines.append(_shared_device_in_words(summary))
    there = [name for name, pattern in FILES.items() if any(Path(run_dir).glob(pattern))]
    lines.append(f"Files: {run_dir}" + f" ({', '.join(there)})" * bool(there))
    return [line for line in lines if line]


def _shared_device_in_words(summary: Metrics) -> str:
    """The memory of the shared devices of a colocated run; "" for any other run."""
    if "device/trainer_peak_mb" not in summary:
        return ""
    sides = [summary.get(f"device/{side}_peak_mb", 0.0) for side in ("rollout", "trainer")]
    left = max(summary.get(f"device/{side}_left_mb", 0.0) for side in ("rollout", "trainer"))
    return (
        f"In turn: at most {sides[0]:.1f} MB of tensors of the instances or {sides[1]:.1f} MB of the trainer "
        f"were on the devices, {left:.1f} MB stayed of a side that had left. They changed hands "
        f"{summary['device/changes']:.0f} times, in {_duration(summary['device/changing_s'])}."
    )


def _evaluations_in_words(summary: Metrics) -> str:
    named = [(which, summary.get(f"evaluation/{which}")) for which in ("first", "best", "last")]
    told = [
        f"{line['pass@1']:.3f} {which} (version {line['policy_version']})"
        for which, line in named
        if line and "pass@1" in line
    ]
    return f"Held-out pass@1: {', '.join(told)}." if told else ""


class _Pace:
    """Estimates the time to the end from the last train steps, without pauses by an operator."""

    def __init__(self, steps: int, clock: Callable[[], float]) -> None:
        self._steps, self._clock = steps, clock
        self._last: tuple[int, float] | None = None
        self._step_s: float | None = None

    def remaining_s(self, metrics: Metrics) -> float | None:
        """Seconds to the last step; None before the second step, and after the last."""
        step, paused = int(metrics["step"]), float(metrics.get("phase/paused") or 0.0)
        now, last = self._clock(), self._last
        self._last = (step, now)
        if last is None:
            return None
        lately_s = (1.0 - paused) * (now - last[1]) / max(step - last[0], 1)
        self._step_s = lately_s if self._step_s is None else self._step_s + MEMORY * (lately_s - self._step_s)
        return self._step_s * (self._steps - step) if step < self._steps else None


class PlainConsole:
    """One line of plain text per event, for logs and pipes."""

    def __init__(
        self,
        *,
        steps: int,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._print = write or (lambda line: print(line, flush=True))
        self._steps, self._clock = steps, clock
        self._pace = _Pace(steps, clock)
        self._last: tuple[str, float] | None = None  # activity, and when it was printed last

    def progress(self, fraction: float | None, text: str) -> None:
        activity, now = text.partition(",")[0], self._clock()
        is_news = self._last is None or self._last[0] != activity or fraction == 1.0
        if is_news or (self._last is not None and now - self._last[1] >= PLAIN_PROGRESS_S):
            self._last = (activity, now)
            self._write(text if fraction is None else f"{fraction:4.0%} {text}")

    def step(self, metrics: Metrics) -> None:
        remaining = self._pace.remaining_s(metrics)
        self._write(step_line(metrics, steps=self._steps, remaining_s=remaining))

    def evaluation(self, metrics: Metrics) -> None:
        self._write(evaluation_line(metrics))

    def warn(self, text: str) -> None:
        self._write(f"warning: {brief(text)}")

    def note(self, text: str) -> None:
        self._write(text)

    def finish(self, summary: Metrics, run_dir: Path) -> None:
        for line in verdict_lines(summary, run_dir):
            self._write(line)

    def close(self) -> None:
        pass

    def _write(self, line: str) -> None:
        self._print(plain(line))


class RichConsole:
    """Lines that scroll above a live bar, first for the model, then the workers, then training."""

    def __init__(
        self, terminal: Terminal, *, steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._terminal, self._steps = terminal, steps
        self._pace = _Pace(steps, clock)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            console=terminal, transient=True, expand=True,
        )  # fmt: skip
        self._phase = ""
        self._task: TaskID | None = None
        self._bar.start()

    def progress(self, fraction: float | None, text: str) -> None:
        phase, colon, _ = text.partition(": ")
        task = self._begin(phase if colon else "")
        share = fraction or None  # at 0 the duration is not known yet: a spinner, and a bar that pulses
        count = "" if share is None else f"{share:.0%}"
        self._bar.update(
            task, description=plain_line(text), total=None if share is None else 1.0, completed=share or 0.0,
            count=count, refresh=True,
        )  # fmt: skip
        if phase == "workers" and fraction == 1.0:
            self._show_step(0, None)

    def step(self, metrics: Metrics) -> None:
        step = int(metrics["step"])
        remaining_s = self._pace.remaining_s(metrics)
        width = max(self._terminal.width, LEAST_WIDTH)
        line = step_line(metrics, steps=self._steps, remaining_s=remaining_s, width=width)
        self._show_step(step, remaining_s)
        self._print(line)

    def _show_step(self, step: int, remaining_s: float | None) -> None:
        task = self._begin("training")
        left = "" if remaining_s is None else f"~{_duration(remaining_s)} left"
        text = "training" if step else "training: the first step"
        count = f"{step}/{self._steps}" if step else ""
        total = self._steps if step else None
        self._bar.update(
            task, description=text, total=total, completed=step, count=count, left=left, refresh=True
        )

    def _begin(self, phase: str) -> TaskID:
        """The bar of a phase, in place of the bar of the last phase."""
        if self._task is None or phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._phase, self._task = phase, self._bar.add_task("", total=None, count="", left="")
        return self._task

    def evaluation(self, metrics: Metrics) -> None:
        self._print(evaluation_line(metrics), style="cyan")

    def warn(self, text: str) -> None:
        self._print(f"warning: {brief(text)}", style="yellow")

    def note(self, text: str) -> None:
        self._print(text)

    def finish(self, summary: Metrics, run_dir: Path) -> None:
        self.close()
        for line in verdict_lines(summary, run_dir):
            self._print(line)

    def close(self) -> None:
        self._bar.stop()

    def _print(self, line: str, *, style: str = "") -> None:
        self._terminal.print(Text(plain(line), style=style), soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
