"""Measures the errors of predictions of the next batch, each made when a step's version was published.

Invariants: 24 bytes for each; it is held against the moment at which the trainer is sent the batch; a batch
that was sent at once says nothing, and a pause neither.
"""

from array import array
from bisect import bisect_right
from typing import Any

from controller.core.commands import Send
from controller.core.core import Core
from controller.durability.replay import Replayed
from controller.view.critical_path import awaited_groups, batch_left_s
from protocol.messages import Train

MOST = 20  # of which a mean is told
COLUMNS = ("at_s", "predicted_s", "actual_s")
Json = dict[str, Any]


class Predictions:
    """Follows a core through its history."""

    def __init__(self, core: Core) -> None:
        """`core`: where the history begins."""
        self._steps = core.state.steps
        self._is_wanted = False  # a step was finished, and its version is not published yet
        self._open: tuple[float, float] | None = None  # when the last was made, and what it said
        self.at_s: array[float] = array("d")  # when they were held against what came
        self.predicted_s: array[float] = array("d")
        self.actual_s: array[float] = array("d")

    def take(self, turn: Replayed, core: Core) -> None:
        """Take a step of the core."""
        now = core.state.now
        is_sent = any(
            isinstance(command, Send) and isinstance(command.message, Train) for command in turn.commands
        )
        if is_sent and self._open is not None:
            made_s, left_s = self._open
            for column, value in zip(COLUMNS, (now, left_s, now - made_s), strict=True):
                getattr(self, column).append(value)
        if is_sent or core.state.paused is not None:
            self._open = None
        if is_sent:
            self._is_wanted = False
        elif core.state.steps != self._steps:
            self._is_wanted = True
        self._steps = core.state.steps
        newest = core.state.versions.newest
        if self._is_wanted and newest is not None and newest.policy_version >= self._steps:
            self._is_wanted = False  # who pulls the version that was made has been told so
            left_s = batch_left_s(core, awaited_groups(core))
            self._open = None if left_s is None else (now, left_s)

    def until(self, now: float) -> Json:
        """Of the last ones up to a moment: how many, their mean error, and what they should have said."""
        last = bisect_right(self.at_s, now)
        first = max(0, last - MOST)
        count = max(1, last - first)
        pairs = list(zip(self.predicted_s[first:last], self.actual_s[first:last], strict=True))
        return {
            "predictions": last - first,
            "error_s": sum(abs(predicted - actual) for predicted, actual in pairs) / count,
            "mean_s": sum(actual for _, actual in pairs) / count,
        }

    def as_plain(self) -> Json:
        """The whole state, as plain values for msgpack."""
        columns = {name: getattr(self, name).tobytes() for name in COLUMNS}
        return columns | {"steps": self._steps, "open": self._open, "is_wanted": self._is_wanted}

    def take_over(self, plain: Json) -> None:
        """Restore the state from `as_plain`."""
        self._steps, self._is_wanted = plain["steps"], plain["is_wanted"]
        self._open = None if plain["open"] is None else (plain["open"][0], plain["open"][1])
        for name in COLUMNS:
            setattr(self, name, array("d", plain[name]))
