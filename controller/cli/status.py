"""`launch.py status RUN` and `launch.py stop RUN`: shows the state of a run, and asks it to end.

Invariants: only status.json, summary.json, metrics.jsonl, evaluations.jsonl and the lock file are read, so
the run is not disturbed; status works while the run goes on, while its controller hangs, and after it died;
lines of metrics.jsonl are read once, however often the run is looked at."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from controller.cli.command_line import Run
from controller.cli.console import verdict_lines
from controller.cli.say import say
from controller.durability.holder import controller_of
from controller.history.alarms import KEYS, Alarm, alarms
from controller.view.written import LINES, Written
from protocol.errors import RunError
from protocol.files import exists, plain_only
from protocol.plain_text import plain

LATE_S = 15.0  # a healthy controller writes status.json at least every 10 s
WATCH_S = 1.0  # between two looks at status.json, whose writes are not signalled
WORTH_TELLING_S = 5.0  # least duration of a shown wait that is not overdue


def status(
    run: Run,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again each second, in place, until the run ends.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: one object; with --watch one a line.")
    ] = False,
) -> None:
    """Show the state of a run and what it waits for, whether it goes on, hangs, or has died."""
    looks, written = _looks(Path(run), is_endless=watch), _written(Path(run))
    if as_json:
        for _ in looks:
            print(json.dumps(for_programs(Path(run), written, now=time.time())), flush=True)
    elif watch:
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            for _ in looks:
                words = "\n".join(map(plain, in_words(Path(run), written, now=time.time())))
                live.update(Text(words), refresh=True)
    else:
        for line in in_words(Path(run), written, now=time.time()):
            say(line)


def _written(run: Path) -> Written:
    """The run's lines, with only the keys that alarms need: all keys of a long run take hundreds of MB."""
    return Written(run, only=KEYS)


def _looks(run: Path, *, is_endless: bool) -> Iterator[None]:
    """Yields each time that the run is to be shown: once, or each second until the run has ended."""
    while True:
        is_last = not is_endless or exists(run / "summary.json") or controller_of(run) is None
        yield
        if is_last:
            return
        time.sleep(WATCH_S)


def for_programs(run: Path, written: Written | None = None, *, now: float) -> dict[str, Any]:
    """The run's own status, with `state` (over, gone, silent, live), `age_s` of the status, and `alarms`.

    `written`: the run's lines, read up to the last look. Raises: RunError if there is no run, or a file of it
    is damaged.
    """
    path, seen = _read(run)
    wrong = _alarms_of(written or _written(run), bound=seen.get("staleness/max_allowed"))
    if path.name == "summary.json":
        return {"state": "over", "age_s": None, **seen, "alarms": wrong}
    age_s = max(0.0, now - path.stat().st_mtime)
    state = "gone" if controller_of(run) is None else "silent" if age_s > LATE_S else "live"
    failing = [] if state == "gone" else seen.get("alarms", [])
    return {"state": state, "age_s": round(age_s, 3), **seen, "alarms": [*failing, *wrong]}


def stop(run: Run) -> None:
    """Ask a run to end in order, as one Ctrl-C does: the current step is finished and saved."""
    pid, none = controller_of(Path(run)), f"No controller is at work on {run}; there is nothing to stop."
    if pid is None:
        raise RunError(none)
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:  # it has ended meanwhile
        raise RunError(none) from None
    except PermissionError:
        raise RunError(
            f"The controller of {run} (pid {pid}) is another user's process, which you may not signal. "
            "Expected the user who started it; ask them to stop it."
        ) from None
    say(f"The controller (pid {pid}) was asked to finish its step, save a checkpoint and end.")


def in_words(run: Path, written: Written | None = None, *, now: float) -> list[str]:
    """The lines that `status` prints; `now`: seconds since 1970.

    `written`, Raises: as `for_programs`.
    """
    path, seen = _read(run)
    written = written or _written(run)
    try:
        if path.name == "summary.json":
            return _of_the_end(run, written, seen)
        return _of_now(run, written, path, seen, now=now)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(run, path, error) from error


def _read(run: Path) -> tuple[Path, dict[str, Any]]:
    """The path and content of summary.json, or else status.json. Raises: RunError."""
    path = next((run / name for name in ("summary.json", "status.json") if exists(run / name)), None)
    if path is None:
        raise RunError(
            f"There is no {run / 'status.json'}. Expected a run directory, such as runs/quickstart, of a run "
            "that has begun."
        )
    try:
        with open(path, encoding="utf-8", opener=plain_only) as file:
            seen = json.load(file)
        if not isinstance(seen, dict):
            raise TypeError(f"{type(seen).__name__} instead of an object")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(run, path, error) from error
    return path, seen


def _damaged(run: Path, path: Path, error: Exception) -> RunError:
    return RunError(
        f"{path} is damaged, or of another release: {type(error).__name__}: {error}. Expected what the "
        f"controller writes there; its journal is whole without it: `launch.py replay {run}`."
    )


def _of_now(run: Path, written: Written, path: Path, seen: dict[str, Any], *, now: float) -> list[str]:
    """The lines of a run that is not over, by the last status of its controller."""
    pid = controller_of(run)
    age_s = max(0.0, now - path.stat().st_mtime)  # the clock may have been set back since
    lines = [_headline(run, seen, pid, age_s=age_s)]
    rate, newest = seen["tokens_per_s"], seen["published_version"]
    lines.append(
        ("no version" if newest < 0 else f"version {newest}")  # a supervised run has none to its end
        + f" is published, {seen['steps']} of {seen['steps_wanted']} steps are made"
        + ("" if rate is None else f"; {rate:,.0f} tokens/s in the last one")
    )
    groups = ", ".join(f"{count} {state}" for state, count in seen["groups"].items()) or "none"
    lines.append(f"groups: {groups}; {seen['queued']} responses queued")
    if due := ", ".join(f"{count} in {version}" for version, count in seen["due_counts"].items()):
        lines.append(f"due by version (batches of {seen['batch_groups']}): {due}")
    if buffers := seen.get("buffers"):
        lines.append("buffers by version: " + "; ".join(map(_buffer, buffers)))
    if paused := seen.get("paused"):
        lines.append(f"PAUSED: {paused}")
    elif idle := seen.get("idle_because"):
        lines.append(f"nothing runs: {idle}")
    lines += _table(seen["workers"])
    serving = [worker for worker in seen["workers"] if worker.get("serves_at")]
    lines += [f"{one['name']} hands versions to other hosts at {one['serves_at']}" for one in serving]
    failing = seen.get("alarms", []) if pid is not None else []
    bound = seen.get("staleness/max_allowed")
    lines += [*map(_alarm, failing), *_alarms(written, bound=bound)]
    return lines + (_waits(seen["waits"], seen.get("waits_left_out", 0)) if pid is not None else [])


def _alarms(written: Written, *, bound: int | None = None) -> list[str]:
    """Alarms of learning by the run's metrics; `bound`: its max_staleness, if known."""
    return [_alarm(one) for one in _alarms_of(written, bound=bound)]


def _alarm(found: dict[str, Any]) -> str:
    return f"ALARM, {Alarm(**found).in_words()}"


def _alarms_of(written: Written, *, bound: int | None = None) -> list[dict[str, Any]]:
    made, evaluated = map(written.lines, LINES)
    return [one._asdict() for one in alarms(made, evaluated, bound=bound)]


def _waits(waits: list[dict[str, Any]], left_out: int) -> list[str]:
    """Overdue waits with remedies; or, if none is overdue, waits of some seconds.

    `left_out`: number of waits that status.json leaves out, none of them longer overdue.
    """
    if stuck := [wait for wait in waits if wait["is_overdue"]]:
        return [
            f"STUCK: {wait['owner']}, {wait['for_s']:.0f} s, for {wait['what']}; {wait['then']}"
            for wait in stuck
        ] + [f"{left_out} more waits are left out."] * (left_out > 0 and len(stuck) == len(waits))
    long = [wait for wait in waits if wait["for_s"] >= WORTH_TELLING_S][:3]
    return [f"waits: {wait['owner']}, {wait['for_s']:.0f} s, for {wait['what']}" for wait in long]


def _of_the_end(run: Path, written: Written, summary: dict[str, Any]) -> list[str]:
    """The lines of a run that is over: how it ended, and its results."""
    ending = summary.get("ending") or ("done" if summary["is_success"] else "failed")
    how = {"done": "is done", "stopped": "was stopped", "failed": "has failed"}[ending]
    wrong = _alarms(written, bound=summary.get("staleness/max_allowed"))
    return [f"{run} {how}: {summary['reason']}", *verdict_lines({**summary, "reason": ""}, run), *wrong]


def _headline(run: Path, seen: dict[str, Any], pid: int | None, *, age_s: float) -> str:
    if pid is None:
        return (
            f"{run}: its controller is gone since {age_s:.0f} s, in the middle of the run. The command that "
            "started it goes on with it. It stood so:"
        )
    if age_s > LATE_S:
        return f"{run}: its controller (pid {pid}) is there, but has said nothing for {age_s:.0f} s"
    return f"{run} goes on (controller pid {pid}, {seen['now_s']:.0f} s): waits for {seen['waiting_for']}"


def _buffer(buffer: dict[str, Any]) -> str:
    """One batch of the window: its state, and counts of its groups."""
    free = "any number" if buffer["free"] < 0 else buffer["free"]
    counts = f"{buffer['occupied']} scored, {buffer['reserved']} under way, {free} may start"
    return f"{buffer['train_version']} {buffer['state']} ({counts})"


def _table(workers: list[dict[str, Any]]) -> list[str]:
    rows = [("worker", "version", "running", "tokens held", "memory", "silent", "working on")]
    for worker in workers:
        version = "-" if worker["policy_version"] < 0 else str(worker["policy_version"])
        held = f"{worker['resident_tokens']:,}"
        silent = f"{worker['silent_s']:.1f} s"
        memory = f"{worker['resident_mb']:,} MB" if worker.get("resident_mb") else "-"
        if worker.get("device_total_mb"):
            memory += f", device {worker['device_mb']:,} of {worker['device_total_mb']:,} MB"
        running, doing = str(worker["running"]), worker["working_on"]
        rows.append((worker["name"], version, running, held, memory, silent, doing))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]  # fmt: skip
