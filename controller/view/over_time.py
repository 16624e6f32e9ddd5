"""What pages show of a run's whole history, out of the pass over it: why no more prompts started, and ages.

Invariant: an answer is as far as the pass has come, and says how far that is.
"""

from math import inf
from typing import Any

from controller.view.shown_run import ShownRun

Json = dict[str, Any]


def starts(run: ShownRun, at: dict[str, str], *, patience_s: float = inf) -> Json:
    """What kept the next prompt from starting, over the last steps before a moment.

    Raises: StillReading after `patience_s`.
    """
    now = run.moment(at, patience_s=patience_s)["now_s"]
    with run.history() as (timeline, progress):
        found = timeline.starts.last_steps(min(now, timeline.until_s))
        return found | {"predicted": timeline.predictions.until(now)} | progress


def ages(run: ShownRun) -> Json:
    """How old what was trained was, over the steps."""
    with run.history() as (timeline, progress):
        return timeline.ages.columns() | progress
