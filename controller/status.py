"""`launch.py status RUN` and `launch.py stop RUN`: what another process can learn of a run, and ask of it.

Invariants: only status.json, summary.json and the lock file are read, so nothing of the run is disturbed; it
works while the run goes on, while its controller hangs, and after it died.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from protocol.errors import RunError

LATE_S = 15.0  # status.json is written every 10 s at least, while the controller is well
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory.")]


def status(run: Run) -> None:
    """Tell where a run stands and what it waits for; it may go on, hang, or have died."""
    for line in in_words(Path(run), now=time.time()):
        print(line)


def stop(run: Run) -> None:
    """Ask a run to end in good order, as one Ctrl-C does: the step in hand is finished and saved."""
    pid = controller_of(Path(run))
    if pid is None:
        raise RunError(f"No controller is at work on {run}; there is nothing to stop.")
    os.kill(pid, signal.SIGINT)
    print(f"The controller (pid {pid}) was asked to finish its step, save a checkpoint and end.")


def in_words(run: Path, *, now: float) -> list[str]:
    """The lines that `status` prints; `now`: seconds since 1970. Raises: RunError if there is no run."""
    path = run / "status.json"
    if not path.exists():
        raise RunError(
            f"There is no {path}. Expected a run directory, such as runs/quickstart, of a run that has begun."
        )
    seen: dict[str, Any] = json.loads(path.read_text())
    lines = [_headline(run, seen, age_s=now - path.stat().st_mtime)]
    lines.append(
        f"version {seen['published_version']} is published, {seen['steps']} of {seen['steps_wanted']} steps "
        f"are made; {seen['tokens_per_s']:,.0f} tokens/s"
    )
    groups = ", ".join(f"{count} {state}" for state, count in seen["groups"].items()) or "none"
    lines.append(f"groups: {groups}; {seen['queued']} responses queued")
    due = ", ".join(f"{count} in {version}" for version, count in seen["due_counts"].items())
    lines.append(f"due by version (batches of {seen['batch_groups']}): {due}")
    if buffers := seen.get("buffers"):
        lines.append("buffers by version: " + "; ".join(map(_buffer, buffers)))
    lines += _table(seen["workers"])
    waits = [wait for wait in seen["waits"] if wait["is_overdue"]] or seen["waits"][:3]
    lines += [
        f"{'STUCK' if wait['is_overdue'] else 'waits'}: {wait['owner']}, {wait['for_s']:.0f} s, for "
        f"{wait['what']}; {wait['then']}"
        for wait in waits
    ]
    return lines


def _headline(run: Path, seen: dict[str, Any], *, age_s: float) -> str:
    if (run / "summary.json").exists():
        summary = json.loads((run / "summary.json").read_text())
        how = "is done" if summary["is_success"] else "has failed"
        return f"{run} {how}: {summary['reason']}"
    pid = controller_of(run)
    if pid is None:
        return (
            f"{run}: its controller is gone since {age_s:.0f} s, in the middle of the run. The command that "
            "started it goes on with it. It stood so:"
        )
    if age_s > LATE_S:
        return f"{run}: its controller (pid {pid}) is there, but has said nothing for {age_s:.0f} s"
    return f"{run} goes on (controller pid {pid}, {seen['now_s']:.0f} s): waits for {seen['waiting_for']}"


def _buffer(buffer: dict[str, Any]) -> str:
    """One batch of the window: its state, and what it has and waits for."""
    free = "any number" if buffer["free"] < 0 else buffer["free"]
    counts = f"{buffer['occupied']} scored, {buffer['reserved']} under way, {free} may start"
    return f"{buffer['train_version']} {buffer['state']} ({counts})"


def controller_of(run: Path) -> int | None:
    """The process that holds the run; None if it has ended."""
    lock = run.resolve().parent / f".{run.resolve().name}.lock"
    try:
        pid = int(lock.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _table(workers: list[dict[str, Any]]) -> list[str]:
    rows = [("worker", "version", "running", "tokens held", "silent", "working on")]
    for worker in workers:
        version = "-" if worker["policy_version"] < 0 else str(worker["policy_version"])
        held = f"{worker['resident_tokens']:,}"
        silent = f"{worker['silent_s']:.1f} s"
        rows.append((worker["name"], version, str(worker["running"]), held, silent, worker["working_on"]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]  # fmt: skip
