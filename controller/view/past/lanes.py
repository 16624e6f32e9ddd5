"""Lanes of workers: states that follow each other without a gap, and the seconds in each of them.

Invariants: a lane is in one state at a time; it takes 29 bytes per change of state.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = (
    "gone", "starting", "generating", "pulling", "training", "encoding", "scoring", "episodes",
    "idle: bound", "idle: cap", "idle: data", "idle: weights", "idle: routing", "idle: nothing to do",
    "waits: rollout", "waits: scoring", "waits: weights", "waits: data", "waits: cap", "waits: pace",
    "waits: environments", "waits: start-up", "paused",
)  # fmt: skip
NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
BESIDE = ("prefill", "publishing", "saving", "ahead")
"""What a worker may do beside its state: bits of a detail, the first of them lowest."""
VERSION_BITS = 24  # of a detail, below those
COLUMNS = ("begins", "kinds", "details", "tokens", "loads")  # of a lane
SUMS = ("generated", "loaded", "load", "since_s")


@dataclass(slots=True)
class Lane:
    """The states of one worker: each begins where the one before ends."""

    name: str
    role: str
    begins: "array[float]" = field(default_factory=lambda: array("d"))
    kinds: "array[int]" = field(default_factory=lambda: array("B"))
    details: "array[int]" = field(default_factory=lambda: array("i"))  # `with_beside`, or -1
    tokens: "array[int]" = field(default_factory=lambda: array("q"))  # generated before the state began
    loads: "array[float]" = field(default_factory=lambda: array("d"))  # `loaded` before the state began
    generated: int = 0
    loaded: float = 0.0  # seconds, each by the share of its places that were taken
    load: float = 0.0  # that share now
    since_s: float = 0.0

    @property
    def state(self) -> str:
        """The current state; "" before the first."""
        return KINDS[self.kinds[-1]] if self.kinds else ""

    def carry(self, now: float, load: float) -> None:
        """Set the share of places that are taken from now on. Call it before `enter`."""
        self.loaded += self.load * (now - self.since_s)
        self.since_s, self.load = now, load

    def enter(self, now: float, kind: str, detail: int = -1) -> None:
        """Enter a state."""
        number = NUMBERS[kind]
        if self.kinds and self.kinds[-1] == number and self.details[-1] == detail:
            return
        if self.begins and self.begins[-1] == now:  # it was in the other state for no time
            for name in COLUMNS:
                del getattr(self, name)[-1]
            self.enter(now, kind, detail)
            return
        self.begins.append(now)
        self.kinds.append(number)
        self.details.append(detail)
        self.tokens.append(self.generated)
        self.loads.append(self.loaded)

    def load_of(self, place: int, until_s: float) -> float:
        """The mean share of its places that were taken in its state at this place; the last one `until_s`."""
        is_last = place + 1 == len(self.begins)
        end_s = until_s if is_last else self.begins[place + 1]
        after = self.loaded + self.load * (until_s - self.since_s) if is_last else self.loads[place + 1]
        return (after - self.loads[place]) / max(end_s - self.begins[place], 1e-9)

    def tokens_until(self, second: float, until_s: float) -> float:
        """Tokens generated up to a moment, evenly within a state; the last state is known `until_s`."""
        place = bisect_right(self.begins, second) - 1
        if place < 0:
            return 0.0
        is_last = place + 1 == len(self.begins)
        end_s = until_s if is_last else self.begins[place + 1]
        before, after = self.tokens[place], self.generated if is_last else self.tokens[place + 1]
        share = (second - self.begins[place]) / max(end_s - self.begins[place], 1e-9)
        return before + (after - before) * min(1.0, share)


def with_beside(version: int, *beside: str) -> int:
    """A detail: a policy version, and what the worker does beside its state."""
    return version | sum(1 << BESIDE.index(what) for what in beside) << VERSION_BITS


def apart(detail: int) -> tuple[int, int]:
    """The policy version of a detail, or -1, and the bits of what is done beside."""
    if detail < 0:
        return -1, 0
    return detail & ((1 << VERSION_BITS) - 1), detail >> VERSION_BITS


def shares(lanes: Iterable[Lane], begin_s: float, end_s: float) -> dict[str, dict[str, float]]:
    """Seconds by role and state between two moments."""
    return {
        role: {KINDS[kind]: float(seconds) for kind, seconds in enumerate(found[0]) if seconds > 0}
        for role, members in by_role(lanes).items()
        if (found := seconds_of(members, begin_s, end_s, bins=1)).any()
    }


def by_role(lanes: Iterable[Lane]) -> dict[str, list[Lane]]:
    found: dict[str, list[Lane]] = {}
    for lane in lanes:
        found.setdefault(lane.role, []).append(lane)
    return found


def seconds_of(lanes: list[Lane], begin_s: float, end_s: float, *, bins: int) -> Any:
    """[bins, KINDS] seconds of these lanes between two moments, in one go: a fleet has a thousand of them."""
    width = (end_s - begin_s) / bins
    there = [lane for lane in lanes if lane.begins and lane.begins[0] < end_s]
    if width <= 0 or not there:
        return np.zeros((bins, len(KINDS)))
    begins = np.concatenate([np.frombuffer(lane.begins) for lane in there])
    kinds = np.concatenate([np.frombuffer(lane.kinds, np.uint8) for lane in there])
    ends = np.append(begins[1:], end_s)
    ends[np.cumsum([len(lane.begins) for lane in there]) - 1] = end_s  # the last state of a lane goes on
    begins, ends = np.clip(begins, begin_s, end_s), np.clip(ends, begin_s, end_s)
    inside = ends > begins
    begins, ends, kinds = begins[inside], ends[inside], kinds[inside]
    first = np.clip(((begins - begin_s) / width).astype(np.int64), 0, bins - 1)
    last = np.clip(np.ceil((ends - begin_s) / width).astype(np.int64) - 1, first, bins - 1)
    pieces = last - first + 1  # bins that a span has a part in
    span = np.repeat(np.arange(len(pieces)), pieces)
    place = first[span] + np.arange(len(span)) - (np.cumsum(pieces) - pieces)[span]
    begins = np.maximum(begins[span], begin_s + place * width)
    ends = np.minimum(ends[span], begin_s + (place + 1) * width)
    weights, cells = np.maximum(ends - begins, 0.0), place * len(KINDS) + kinds[span].astype(np.int64)
    return np.bincount(cells, weights=weights, minlength=bins * len(KINDS)).reshape(bins, len(KINDS))


def seconds_by_lane(lanes: list[Lane], begin_s: float, end_s: float) -> Any:
    """[lanes, KINDS] seconds of each lane between two moments."""
    found = np.zeros((len(lanes), len(KINDS)))
    for place, lane in enumerate(lanes):
        if lane.begins and lane.begins[0] < end_s:
            begins = np.frombuffer(lane.begins)
            ends = np.append(begins[1:], end_s)
            held = np.clip(ends, begin_s, end_s) - np.clip(begins, begin_s, end_s)
            kinds = np.frombuffer(lane.kinds, np.uint8)
            found[place] = np.bincount(kinds, weights=held, minlength=len(KINDS))
    return found
