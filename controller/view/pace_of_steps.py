"""The pace of a run by its newest train steps: reward, speed, bottleneck, and time to the end.

Invariants: pure, out of lines of metrics.jsonl, of which each number is looked at before it counts; what they
do not say is left out, or None.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from controller.config.models import Config
from controller.core.state.bottleneck import Figures, verdict
from controller.history.alarms import MOST_VALUE
from controller.view.written import at_most, is_number

MOST_STEPS = 20  # that the verdict is of
PACE_STEPS = 10  # that the time to the end is estimated from
LEAST_STEPS = 3  # with fewer there is no spread
PHASE = "phase/"
Json = dict[str, Any]
Line = Mapping[str, Any]


def pace_of(lines: Sequence[Line], step: int, config: Config, *, cap: float) -> Json:
    """Of the lines up to a step; `cap`: batches that may be in the system, which advice depends on."""
    up_to = (line for line in reversed(lines) if at_most(line, "step", step))
    found = [*islice(up_to, MOST_STEPS + 1)][::-1]
    timed = _timed(found)
    seconds = [held for _, held in timed]
    return {
        "steps": len(timed),
        "seconds": sum(seconds),
        "reward": _mean(line.get("reward/mean") for line in found[-1:]),
        "mean_reward": _mean(line.get("reward/mean") for line in found[-PACE_STEPS:]),
        "tokens_per_s": _weighted(timed[-PACE_STEPS:], "throughput/tokens_per_s"),
        "verdict": _verdict(timed, config, cap),
        **_left([_at_work_s(*one) for one in timed[-PACE_STEPS:]], max(0, config.run.steps - step)),
    }


def _counts(value: Any) -> bool:
    """Whether it is a number, and sums of such numbers are some, too."""
    return is_number(value) and abs(value) <= MOST_VALUE


def _timed(lines: Sequence[Line]) -> list[tuple[Line, float]]:
    """Lines with the seconds that they took; the first has none, as nothing says when it began."""
    found: list[tuple[Line, float]] = []
    before: Any = None
    for line in lines:
        now = line.get("time_s")
        if _counts(now) and _counts(before) and now > before:
            found.append((line, float(now - before)))
        before = now
    return found[-MOST_STEPS:]


def _at_work_s(line: Line, held: float) -> float:
    """The seconds of a step without an operator's pause, which says nothing of those to come."""
    paused: Any = line.get("phase/paused")
    return held * (1.0 - paused) if _counts(paused) else held


def _mean(values: Any) -> float | None:
    found = [float(value) for value in values if _counts(value)]
    return fmean(found) if found else None


def _weighted(timed: Sequence[tuple[Line, float]], key: str) -> float | None:
    """The mean over the seconds that the steps took."""
    found = [(float(line[key]), held) for line, held in timed if _counts(line.get(key))]
    return sum(value * held for value, held in found) / sum(held for _, held in found) if found else None


def _verdict(timed: Sequence[tuple[Line, float]], config: Config, cap: float) -> str:
    spent: dict[str, float] = {}
    for line, held in timed:
        for key, share in line.items():
            if key.startswith(PHASE) and _counts(share):
                cause = key.removeprefix(PHASE)
                spent[cause] = spent.get(cause, 0.0) + float(share) * held
    if not spent:
        return ""
    return verdict(Figures(len(timed), spent, _weighted(timed, "idle/rollout"), cap), config)


def _left(seconds: Sequence[float], steps: int) -> Mapping[str, float | None]:
    """Seconds to the end, and between which two they lie unless the pace changes: two standard errors."""
    if len(seconds) < LEAST_STEPS:
        return {"left_s": None, "left_least_s": None, "left_most_s": None}
    pace = fmean(seconds)
    error = 2 * stdev(seconds) * sqrt(1 / len(seconds) + 1 / max(1, steps))
    return {
        "left_s": pace * steps,
        "left_least_s": max(0.0, pace - error) * steps,
        "left_most_s": (pace + error) * steps,
    }
