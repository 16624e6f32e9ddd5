"""The rule that kept the next prompt from starting, over time, for the page Ledger's "why not more".

Invariants: one rule at a time, so that the seconds of all are those that went by; rules are asked in the
order in which the core asks them; 9 bytes per change of the rule, 8 per train step.
"""

from array import array
from bisect import bisect_left, bisect_right
from typing import Any

from controller.core.core import Core
from controller.core.state.views.admission import admitted

RULES = ("bound", "cap", "capacity", "prompts", "weights", "paused", "ending")
NUMBERS_OF_RULES = {rule: number for number, rule in enumerate(RULES)}
MOST_STEPS = 20
PARTS = (("begins", "d"), ("rules", "B"), ("finished", "d"))
Json = dict[str, Any]


def why_no_more(core: Core) -> str:
    """The rule that keeps the next prompt from starting after this event."""
    state = core.state
    newest = state.versions.newest
    if state.ending is not None:
        return "ending"
    if state.paused is not None:
        return "paused"
    if newest is None:
        return "weights"
    if not state.fresh:
        return "prompts"
    if state.ledger.headroom(newest.policy_version) <= 0:
        return "bound"
    if admitted(state) <= 0:
        return "cap"
    return "capacity"  # it may start, but what has started goes first, or no instance takes it


class Starts:
    """Follows a core through its history."""

    def __init__(self, core: Core) -> None:
        """`core`: where the history begins."""
        self._first = core.state.steps
        self.begins: array[float] = array("d")  # of rules, each of which ends where the next begins
        self.rules: array[int] = array("B")
        self.finished: array[float] = array("d")  # when each train step was
        self.take(core)

    def take(self, core: Core) -> None:
        """Take a step of the core."""
        now, rule = core.state.now, NUMBERS_OF_RULES[why_no_more(core)]
        while self._first + len(self.finished) < core.state.steps:
            self.finished.append(now)
        if self.begins and self.begins[-1] == now:  # the rule before has held for no time
            del self.begins[-1], self.rules[-1]
        if not self.rules or self.rules[-1] != rule:
            self.begins.append(now)
            self.rules.append(rule)

    def seconds(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Between two moments, by rule; none of a rule that did not hold."""
        found: dict[str, float] = {}
        first = max(0, bisect_right(self.begins, begin_s) - 1)
        last = bisect_left(self.begins, end_s)
        for place in range(first, last):
            end = self.begins[place + 1] if place + 1 < len(self.begins) else end_s
            if (held := min(end, end_s) - max(self.begins[place], begin_s)) > 0:
                rule = RULES[self.rules[place]]
                found[rule] = found.get(rule, 0.0) + held
        return found

    def last_steps(self, now: float) -> Json:
        """What held in the last MOST_STEPS train steps before a moment, and since then; step by step."""
        known = bisect_right(self.finished, now)
        first = max(0, known - MOST_STEPS)
        begins = [self.finished[place - 1] if place else self.begins[0] for place in range(first, known + 1)]
        ends = [*self.finished[first:known], max(now, begins[-1])]
        by_step = [
            {"step": self._first + first + place + 1, "seconds": self.seconds(begin, end)}
            for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
        ]
        return {
            "rules": RULES,
            "begin_s": begins[0],
            "end_s": ends[-1],
            "seconds": self.seconds(begins[0], ends[-1]),
            "steps": by_step,
        }

    def as_plain(self) -> Json:
        """The whole state, as plain values for msgpack."""
        return {"first": self._first} | {name: getattr(self, name).tobytes() for name, _ in PARTS}

    def take_over(self, plain: Json) -> None:
        """Restore the state from `as_plain`."""
        self._first = plain["first"]
        for name, kind in PARTS:
            setattr(self, name, array(kind, plain[name]))
