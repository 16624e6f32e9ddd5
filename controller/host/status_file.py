"""status.json: what a run does now and what it waits for, for people and for `launch.py status`.

Invariants: it is written when its content has changed, and every WRITE_S; an alarm is reported once an hour;
a look at a large run is made in slices, between which the loop does its work, and takes at most SHARE of it;
a disk that refuses the file does not end the run.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from controller.config.models import Config
from controller.core.state.views.snapshot import Alarm, ClusterSnapshot
from controller.host.run_directory import RunDirectory
from controller.host.watchdog import WORKERS_AT_ONCE, Slices, Wait, Watchdog, at_once, rows_of, status_of
from protocol.files import is_file
from protocol.messages import Role

LOOK_S = 1.0  # least time between two looks of the watchdog
SHARE = 0.004  # most of the loop's time for looks; at 1,024 instances one takes 30 ms
WRITE_S = 10.0  # longest time between two status.json, even if nothing has changed
AGAIN_S = 3600.0  # until the same alarm is reported again
AT_END = object()
Own = tuple[dict[str, Any], list[Alarm]]
"""Figures and alarms of the controller itself."""

log = logging.getLogger("staleflow.controller")


def pause_after(spent_s: float) -> float:
    """Seconds until the next look, after one that took `spent_s` seconds of processor time."""
    return min(WRITE_S, max(LOOK_S, spent_s / SHARE))


class StatusFile:
    """The status of one run, and its watchdog."""

    def __init__(
        self, directory: RunDirectory, config: Config, *, on_complaint: Callable[[str], None],
        own: Callable[[], Own] = lambda: ({}, []),
    ) -> None:  # fmt: skip
        """`on_complaint(text)` gets alarms and late waits; `own()`: figures and alarms of the controller."""
        self._tokens_per_s: float | None = None  # of the last train step
        self._directory, self._on_complaint, self._own = directory, on_complaint, own
        self._told: dict[str, float] = {}  # when each alarm was reported
        self._wanted = {
            "steps_wanted": config.run.steps,
            "batch_groups": config.trainer.batch_groups,
            "staleness/max_allowed": config.staleness.max_staleness,
        }
        controller = config.controller
        self._watchdog = Watchdog(
            lease_s=controller.lease_s,
            attach_timeout_s=controller.attach_timeout_s,
            has_log=lambda name: is_file(directory.logs / f"{name}.log"),
            started=_started(config),
        )
        self._shown: tuple[float, object] = (-WRITE_S, None)  # when the file was written, and its content
        self._under_way: Iterator[None] | None = None  # a look in progress
        self._spent_s = 0.0  # its processor time

    def note_step(self, line: Mapping[str, Any]) -> None:
        """Remember the speed of the run from a line of metrics.jsonl."""
        self._tokens_per_s = line.get("throughput/tokens_per_s")

    def look(self, seen: ClusterSnapshot, now: float) -> None:
        """Report overdue waits and alarms, and write the file if its content has changed."""
        at_once(self._look(seen, now))

    def watch(self, look: Callable[[int], Slices[ClusterSnapshot]], now: float) -> float:
        """Go on with a look, or begin one; returns seconds until the next call, 0 while the look goes on.

        `look(workers)` makes a snapshot in slices of so many workers.
        """
        began = time.thread_time()
        if self._under_way is None:
            self._under_way, self._spent_s = self._whole_look(look(WORKERS_AT_ONCE), now), 0.0
        is_at_end = next(self._under_way, AT_END) is AT_END
        self._spent_s += time.thread_time() - began
        if not is_at_end:
            return 0.0
        self._under_way = None
        return pause_after(self._spent_s)

    def write_last(self, look: Callable[[], ClusterSnapshot]) -> None:
        """Write how the run ended.

        A core that failed in the middle of a step may fail at the look, too; the run still has to be closed.
        """
        try:
            seen = look()
            figures, alarms = self._own()
        except Exception:  # a bug of ours, beside the one that has ended the run
            log.exception("status.json does not tell how the run ended: the core cannot be looked at.")
            return
        at_once(self._write(seen, [], (figures, [*alarms, *seen.alarms])))

    def _whole_look(self, snapshot: Slices[ClusterSnapshot], now: float) -> Iterator[None]:
        seen = yield from snapshot
        if len(seen.workers) > WORKERS_AT_ONCE:
            yield
        yield from self._look(seen, now)

    def _look(self, seen: ClusterSnapshot, now: float) -> Slices[None]:
        waits, complaints = yield from self._watchdog.look_in_slices(seen, now)
        figures, alarms = self._own()
        alarms = [*alarms, *seen.alarms]
        for complaint in [*complaints, *self._new(alarms, now)]:
            self._on_complaint(complaint)
        written, before = self._shown
        names = [alarm.name for alarm in alarms]
        news = (seen.steps, seen.tokens, seen.groups, [wait.what for wait in waits], len(complaints), names)
        if news != before or now >= written + WRITE_S:
            self._shown = now, news
            yield from self._write(seen, waits, (figures, alarms))

    def _new(self, alarms: list[Alarm], now: float) -> list[str]:
        """Alarms that were not reported within the last AGAIN_S, in words."""
        new = [alarm for alarm in alarms if now - self._told.get(alarm.name, -AGAIN_S) >= AGAIN_S]
        self._told |= {alarm.name: now for alarm in new}
        return [f"ALARM, {alarm.in_words()}" for alarm in new]

    def _write(self, seen: ClusterSnapshot, waits: list[Wait], own: Own) -> Slices[None]:
        rows: list[str] = []
        for begin in range(0, len(seen.workers), WORKERS_AT_ONCE):
            text = json.dumps(rows_of(seen.workers[begin : begin + WORKERS_AT_ONCE]))
            rows.append(text[1:-1])  # without the brackets of the list
            if len(seen.workers) > WORKERS_AT_ONCE:
                yield
        status = status_of(seen, waits, tokens_per_s=self._tokens_per_s) | self._wanted
        status |= {"controller": own[0], "alarms": [alarm._asdict() for alarm in own[1]]}
        rest = json.dumps(status)
        try:
            self._directory.write_status(f'{rest[:-1]}, "workers": [{", ".join(rows)}]}}\n')
        except OSError as error:  # it only informs
            log.warning("status.json was not written: %s", error)


def _started(config: Config) -> set[Role]:
    """The roles of which the run starts workers itself."""
    counts: dict[Role, int] = {
        "rollout": config.rollout.instances,
        "reward": config.reward.workers,
        "trainer": int(config.trainer.local),
    }
    return {role for role, count in counts.items() if count}
