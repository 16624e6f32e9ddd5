"""Filters the lanes of a timeline: `rollout-1*`, `idle>20%`, `slowest 10`, `every 16`.

Words are separated by spaces or commas. A lane has one of the names, and all of the rest holds. Invariants:
pure; shares and speeds are of what is shown; what is not understood is refused in a sentence.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from protocol.errors import RunError

LONGEST = 200  # characters
MOST_WORDS = 12
GENERATING = "generating"
_SHARE = re.compile(r"(?P<state>[a-z:\-]+)(?P<sign><=|>=|<|>)(?P<percent>\d{1,3}(\.\d+)?)%?")
_COUNT = re.compile(r"(?P<word>slowest|every):?(?P<count>\d{1,4})(st|nd|rd|th)?")
IDLE = ("idle", "waits")  # what begins so is idle: a trainer waits
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda one, other: one < other,
    ">": lambda one, other: one > other,
    "<=": lambda one, other: one <= other,
    ">=": lambda one, other: one >= other,
}


class LaneFacts(NamedTuple):
    """The figures of a lane that a filter reads."""

    name: str
    seconds: Mapping[str, float]  # by state, in what is shown
    tokens: float  # generated in it


class LaneShare(NamedTuple):
    """A condition on the share of a lane's time in a state."""

    state: str
    sign: str
    percent: float

    def lets(self, lane: LaneFacts) -> bool:
        """Whether it holds; of a lane that was not there it does not."""
        there = {state: seconds for state, seconds in lane.seconds.items() if state != "gone"}
        all_s = sum(there.values())
        held = sum(seconds for state, seconds in there.items() if is_state(self.state, state))
        return all_s > 0 and SIGNS[self.sign](100 * held / all_s, self.percent)


class LaneFilter(NamedTuple):
    """A parsed filter."""

    names: tuple[str, ...] = ()
    shares: tuple[LaneShare, ...] = ()
    slowest: int = 0  # so many, by tokens in a second of generating; 0: all
    every: int = 1

    def of(self, lanes: Sequence[LaneFacts]) -> list[int]:
        """Places of the lanes it lets through, in their order; the slowest first where they are asked for."""
        found = [
            place
            for place, lane in enumerate(lanes)
            if (not self.names or any(is_named(name, lane.name) for name in self.names))
            and all(share.lets(lane) for share in self.shares)
        ][:: self.every]
        if not self.slowest:
            return found
        speeds = {place: speed for place in found if (speed := speed_of(lanes[place])) is not None}
        return sorted(speeds, key=lambda place: (speeds[place], place))[: self.slowest]


def filter_of(text: str, states: Sequence[str]) -> LaneFilter:
    """What the words mean; `states` are those that lanes can be in. Raises: RunError."""
    if len(text) > LONGEST:
        raise RunError(f"A filter of {len(text)} characters is too long; expected {LONGEST} at most.")
    joined = re.sub(r"\s*(<=|>=|<|>)\s*", r"\1", re.sub(r"\s+%", "%", text.lower()))
    joined = re.sub(r"\b(slowest|every)\s+(?=\d)", r"\1:", joined)
    joined = re.sub(r"\b(idle|waits):\s+", r"\1:", joined)
    words = [word for word in re.split(r"[\s,]+", joined) if word]
    if len(words) > MOST_WORDS:
        raise RunError(f"A filter of {len(words)} words is too long; expected {MOST_WORDS} at most.")
    found = LaneFilter()
    for word in words:
        found = _with(found, word, states)
    return found


def _with(found: LaneFilter, word: str, states: Sequence[str]) -> LaneFilter:
    if count := _COUNT.fullmatch(word):
        return found._replace(**{count["word"]: max(1, int(count["count"]))})
    if share := _SHARE.fullmatch(word):
        if not any(is_state(share["state"], state) for state in states):
            known = ", ".join(dict.fromkeys(state.replace(": ", ":").replace(" ", "-") for state in states))
            raise RunError(f"No lane is ever {share['state']!r}. The states are idle, waits, {known}.")
        return found._replace(
            shares=(*found.shares, LaneShare(share["state"], share["sign"], float(share["percent"])))
        )
    if re.search(r"[<>%]", word):
        raise RunError(
            f"{word!r} is no filter; expected a name such as rollout-1*, a share such as idle>20%, "
            "slowest 10 or every 16."
        )
    return found._replace(names=(*found.names, word))


def is_named(wanted: str, name: str) -> bool:
    """Whether a name is meant by a part of it, or by all of it with * for any characters and ? for one."""
    name = name.lower()
    return fnmatchcase(name, wanted) if re.search(r"[*?\[]", wanted) else wanted in name


def is_state(wanted: str, state: str) -> bool:
    """Whether a state is meant: `idle` stands for all reasons, `idle:bound` for one of them."""
    plain = state.replace(": ", ":").replace(" ", "-")
    if wanted == "idle":
        return plain.startswith(IDLE)
    return plain == wanted or plain.startswith(f"{wanted}:")


def speed_of(lane: LaneFacts) -> float | None:
    """Tokens in a second of generating; None of a lane that did not generate."""
    seconds = lane.seconds.get(GENERATING, 0.0)
    return lane.tokens / seconds if seconds > 0 else None
