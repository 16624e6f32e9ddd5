"""status.json: what a run does now and what it waits for, for people and for `launch.py status`.

Invariant: it is written when something has changed that it says, and every WRITE_S; a disk that refuses it
does not end the run.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from controller.config.models import Config
from controller.core.state.snapshot import ClusterSnapshot
from controller.host.run_directory import RunDirectory
from controller.host.watchdog import Wait, Watchdog, status_of

LOOK_S = 1.0  # between two looks of the watchdog, at least
SHARE = 0.008  # of the loop's time that looks may take: at 1,024 instances one takes 50 ms
WRITE_S = 10.0  # at most between two status.json, though nothing has changed

log = logging.getLogger("staleflow.controller")


def pause_after(spent_s: float) -> float:
    """Seconds until the next look, after one that took so many of the processor's."""
    return min(WRITE_S, max(LOOK_S, spent_s / SHARE))


class StatusFile:
    """The status of one run, and its watchdog."""

    def __init__(
        self, directory: RunDirectory, config: Config, *, on_complaint: Callable[[str], None]
    ) -> None:
        """`on_complaint(text)` hears what takes too long."""
        self._tokens_per_s: float | None = None  # of the last train step
        self._directory, self._on_complaint = directory, on_complaint
        self._wanted = {"steps_wanted": config.run.steps, "batch_groups": config.trainer.batch_groups}
        controller = config.controller
        self._watchdog = Watchdog(lease_s=controller.lease_s, attach_timeout_s=controller.attach_timeout_s)
        self._shown: tuple[float, object] = (-WRITE_S, None)  # when it was written, and what it said

    def note_step(self, line: Mapping[str, Any]) -> None:
        """Remember of a line of metrics.jsonl how fast the run is."""
        self._tokens_per_s = line.get("throughput/tokens_per_s")

    def look(self, seen: ClusterSnapshot, now: float) -> None:
        """Complain of what takes too long, and write what is new."""
        waits, complaints = self._watchdog.look(seen, now)
        for complaint in complaints:
            self._on_complaint(complaint)
        written, before = self._shown
        news = (seen.steps, seen.tokens, seen.groups, [wait.what for wait in waits], len(complaints))
        if news != before or now >= written + WRITE_S:
            self._shown = now, news
            self.write(seen, waits)

    def watch(self, look: Callable[[], ClusterSnapshot], now: float) -> float:
        """Look once; seconds until the next look, so that looks take no more than SHARE of the processor."""
        began = time.thread_time()
        self.look(look(), now)
        return pause_after(time.thread_time() - began)

    def write(self, seen: ClusterSnapshot, waits: list[Wait]) -> None:
        """Write it now."""
        try:
            status = status_of(seen, waits, tokens_per_s=self._tokens_per_s)
            self._directory.write_status(status | self._wanted)
        except OSError as error:  # it only informs
            log.warning("status.json was not written: %s", error)
