"""Alarms of learning on the console and in the log, each at most once an hour."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.history.alarms import alarms
from controller.view.exports.news import Bell, of_alarm

MOST_LINES = 1_000  # that rules look back

log = logging.getLogger("staleflow.controller")


class AlarmWatch:
    """Looks at each train step that is done."""

    def __init__(self, warn: Callable[[str], None], *, bound: int) -> None:
        """`bound`: the run's max_staleness."""
        self._warn, self._bound = warn, bound
        self._lines: list[Mapping[str, Any]] = []
        self._bell = Bell()

    def step(self, line: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> None:
        """One more line of metrics.jsonl."""
        self._lines = [*self._lines[-MOST_LINES:], line]
        found = [of_alarm(one) for one in alarms(self._lines, evaluations, bound=self._bound)]
        for one in self._bell.new(found, time.monotonic()):
            log.warning("ALARM, %s", one.text)
            self._warn(f"ALARM, {one.text}")
