"""Alarms of learning on the console and in the log, each at most once an hour."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from controller.history.alarms import alarms, watched
from controller.view.exports.news import Bell, of_alarm
from controller.view.written import EVALUATIONS, METRICS, GrowingLines, Json, Lines
from protocol.errors import RunError

log = logging.getLogger("staleflow.controller")


class AlarmWatch:
    """Checks a run for alarms after each train step; the steps before a resume count, too."""

    def __init__(self, run: Path, warn: Callable[[str], None], *, bound: int) -> None:
        """`bound`: the run's max_staleness."""
        self._warn, self._bound = warn, bound
        self._files = [GrowingLines(run / name, WatchedLines) for name in (METRICS, EVALUATIONS)]
        self._bell = Bell()
        self._has_told_damage = False

    async def look(self) -> None:
        """Log alarms that hold after the newest line of metrics.jsonl, and warn of them.

        The first call reads all lines of a resumed run, which may take seconds, so it reads in a thread.
        """
        try:
            made, evaluated = await asyncio.to_thread(lambda: [file.read() for file in self._files])
        except RunError as error:  # a damaged file, which says nothing about learning
            if not self._has_told_damage:
                log.warning("No alarms of learning, as long as it is so: %s", error)
            self._has_told_damage = True
            return
        found = [of_alarm(one) for one in alarms(made, evaluated, bound=self._bound)]
        for one in self._bell.new(found, time.monotonic()):
            log.warning("ALARM, %s", one.text)
            self._warn(f"ALARM, {one.text}")


class WatchedLines:
    """Keeps the lines that alarms need, a bounded number of them."""

    def __init__(self) -> None:
        self.lines: Lines = []

    def add(self, lines: list[Json]) -> None:
        """Add lines behind the kept ones."""
        self.lines = watched([*self.lines, *lines])
