"""Data of pages on a run's whole history: why no more prompts started, and the staleness of steps.

Invariant: an answer covers the history as far as the pass over it has come, and says how far that is.
"""

from math import inf
from typing import Any

from controller.view.shown_run import ShownRun

Json = dict[str, Any]


def starts(run: ShownRun, at: dict[str, str], *, patience_s: float = inf) -> Json:
    """Causes that kept the next prompt from starting, over the last steps before a moment.

    Raises: StillReading after `patience_s`.
    """
    now = run.moment(at, patience_s=patience_s)["now_s"]
    with run.history() as (timeline, progress):
        found = timeline.starts.last_steps(min(now, timeline.until_s))
        return found | {"predicted": timeline.predictions.until(now)} | progress


def ages(run: ShownRun) -> Json:
    """Staleness of the trained trajectories, by step."""
    with run.history() as (timeline, progress):
        return timeline.ages.columns() | progress
