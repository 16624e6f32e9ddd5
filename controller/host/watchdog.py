"""Watches all waits of a run: owner, duration, usual duration, and what will be done about them.

Invariants: pure: its inputs are snapshots and their times, and its memory is since when each wait has been
unchanged; a wait that progresses starts over; an overdue wait is reported once, and again each time that it
has doubled.
"""

import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar, get_args

from controller.core.state.views.snapshot import ClusterSnapshot, WorkerSnapshot
from controller.core.waiting_for import REWARD, ROLLOUT, TRAINER
from protocol.messages import Role

LEAST_S = 25.0  # least duration of an overdue wait
FIRST_S = 120.0  # the same for the first wait of its kind
PATIENCE = 5.0  # times the usual length of its kind
MEMORY = 0.2  # weight of the last wait in the usual length
WORKERS_AT_ONCE = 100  # workers in one slice: 1 to 2 ms of the controller's loop
MOST_WAITS = 20  # waits in status.json, the most overdue first
ASLEEP_S = 20.0  # gap between two looks from which the controller stood still; large runs: every 10 s
AWAITED: dict[str, Role] = {ROLLOUT: "rollout", REWARD: "reward", TRAINER: "trainer"}
"""The role that is missing, by what the next step waits for."""
STARTING = "starting"  # mark of the next step until all workers have been ready, or a step was made

_NAMES = tuple(field.name for field in fields(WorkerSnapshot))
_VALUES = attrgetter(*_NAMES)
Found = TypeVar("Found")
Slices = Generator[None, None, Found]
"""Work in slices of a few milliseconds, between which the loop can do other work."""


def at_once(slices: Slices[Found]) -> Found:
    """Run all slices without a pause."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait."""

    owner: str  # a worker, "the next step", or a group
    what: str
    for_s: float
    expected_s: float  # longest duration to be expected, by earlier waits of its kind
    then: str  # what will be done about it
    is_first: bool = False  # whether no wait of its kind has ended yet

    @property
    def is_overdue(self) -> bool:
        """Whether it takes longer than expected."""
        return self.for_s > self.expected_s

    def in_words(self) -> str:
        """One line for the log."""
        usual = "the first such wait" if self.is_first else f"usually at most {self.expected_s:.0f} s"
        return f"{self.owner} has waited {self.for_s:.0f} s for {self.what} ({usual}): {self.then}"


class Watchdog:
    """Looks at snapshots of a run from time to time."""

    def __init__(
        self, *, lease_s: float, attach_timeout_s: float, has_log: Callable[[str], bool],
        started: Collection[Role] = get_args(Role),
    ) -> None:  # fmt: skip
        """`has_log(name)`: whether the run has the log of a worker, which it has of local ones only.

        `started`: roles of which the run starts workers itself.
        """
        self._lease_s, self._attach_s, self._has_log = lease_s, attach_timeout_s, has_log
        self._started = started
        self._since: dict[str, tuple[str, float]] = {}  # owner -> mark of the wait, and since when it has it
        self._usual: dict[str, float] = {}  # seconds, by kind
        self._told: dict[str, float] = {}  # owner -> duration when it was reported
        self._has_begun = False  # whether all workers have been ready, or a step was made
        self._steps: int | None = None  # steps at the first look
        self._looked: float | None = None  # time of the last look

    def look(self, seen: ClusterSnapshot, now: float) -> tuple[list[Wait], list[str]]:
        """All waits, the most overdue first, and new reports."""
        return at_once(self.look_in_slices(seen, now))

    def look_in_slices(self, seen: ClusterSnapshot, now: float) -> Slices[tuple[list[Wait], list[str]]]:
        """The same, in slices of WORKERS_AT_ONCE."""
        self._forgive(now)
        is_starting = not seen.workers or any(not worker.ready for worker in seen.workers)
        if self._steps is None:
            self._steps = seen.steps
        self._has_begun |= not is_starting or seen.steps != self._steps
        mark = str(seen.steps) if self._has_begun else STARTING
        step = self._wait("the next step", seen.waiting_for, mark, now, self._of_step(seen))
        waits = [replace(step, expected_s=max(step.expected_s, self._attach_s)) if is_starting else step]
        waits = [] if seen.paused else waits  # the operator knows
        for place, worker in enumerate(seen.workers, 1):
            if worker.working_on:
                waits.append(
                    self._wait(worker.name, worker.working_on, worker.working_on, now, self._of(worker))
                )
            if place % WORKERS_AT_ONCE == 0:
                yield
        if (group := seen.oldest_group) is not None and not seen.paused:
            mark = f"{group.state} {group.response_tokens}"
            then = "it is the oldest; " + self._of_step(seen)
            waits.append(self._wait(f"group {group.id}", group.waits_for, mark, now, then))
        gone = self._since.keys() - {wait.owner for wait in waits}
        for owner in gone:
            del self._since[owner]
            self._told.pop(owner, None)
        if len(seen.workers) > WORKERS_AT_ONCE:
            yield
        waits.sort(key=lambda wait: wait.expected_s - wait.for_s)
        return waits, [wait.in_words() for wait in waits if self._is_news(wait)]

    def _forgive(self, now: float) -> None:
        """Do not count time in which the controller itself stood still, such as on a machine that slept."""
        slept_s = now - self._looked if self._looked is not None else 0.0
        if slept_s > ASLEEP_S:
            self._since = {owner: (mark, since + slept_s) for owner, (mark, since) in self._since.items()}
        self._looked = now

    def _wait(self, owner: str, what: str, mark: str, now: float, then: str) -> Wait:
        kind = owner.partition(" ")[0] if owner.startswith(("group ", "the ")) else what.partition(" ")[0]
        last, since = self._since.get(owner, ("", now))
        if last != mark:
            if last and last != STARTING:
                usual = self._usual.get(kind, now - since)
                self._usual[kind] = usual + MEMORY * (now - since - usual)
                self._told.pop(owner, None)
            self._since[owner], since = (mark, now), now
        is_first = kind not in self._usual
        least = self._attach_s if what == "getting ready" else FIRST_S if is_first else LEAST_S
        expected = max(least, PATIENCE * self._usual.get(kind, 0.0))
        return Wait(owner, what, round(now - since, 1), round(expected, 1), then, is_first)

    def _of(self, worker: WorkerSnapshot) -> str:
        left_s = self._lease_s - worker.silent_s
        if worker.ready and worker.silent_s > self._lease_s / 3:
            return f"it is silent, and in {max(0.0, left_s):.0f} s its lease ends and its work moves"
        if worker.due_s is None:
            return "it owes no answer"
        return f"in {max(0.0, worker.due_s):.0f} s {worker.then}; {self._see(worker.name)[0]}"

    def _of_step(self, seen: ClusterSnapshot) -> str:
        role = AWAITED.get(seen.waiting_for)
        if role is not None and role not in self._started:
            return f"this run starts none itself, so attach one: `launch.py attach RUN --role {role}`"
        if role is not None:
            return "one that ends, or is silent for longer than its lease, is started again"
        if seen.oldest_group is not None and "trainer" not in seen.waiting_for:
            awaited = seen.oldest_group.waits_for
            names = set(re.findall(r"[^\s,;]+", awaited))
            at_work = [worker.name for worker in seen.workers if worker.name in names and worker.working_on]
            see = f"; {', or '.join(self._see(at_work[0]))}" if at_work else ""
            return f"group {seen.oldest_group.id} waits for {awaited}{see}"
        if seen.waiting_for.endswith("rows of the data"):
            return "the run goes on when the source of prompts gives them, or says that there are no more"
        return "the trainer is started again if it ends or is silent for longer than its lease"

    def _see(self, name: str) -> tuple[str, ...]:
        """Where a person should look next."""
        if self._has_log(name):
            return f"see logs/{name}.log", "`launch.py stacks` of the run"
        return (f"see the log of {name} where it was attached",)

    def _is_news(self, wait: Wait) -> bool:
        is_news = wait.is_overdue and wait.for_s >= 2 * self._told.get(wait.owner, 0.0)
        if is_news:
            self._told[wait.owner] = wait.for_s
        return is_news


def status_of(seen: ClusterSnapshot, waits: list[Wait], *, tokens_per_s: float | None) -> dict[str, Any]:
    """The state of the run for status.json, without workers and alarms.

    `tokens_per_s`: of the last train step; None before the first.
    """
    return {
        **{
            field.name: _plain(getattr(seen, field.name))
            for field in fields(seen)
            if field.name not in ("workers", "alarms")
        },
        "tokens_per_s": None if tokens_per_s is None else round(tokens_per_s, 1),
        "waits": [{**_plain(wait), "is_overdue": wait.is_overdue} for wait in waits[:MOST_WAITS]],
        "waits_left_out": len(waits[MOST_WAITS:]),
    }


def rows_of(workers: Sequence[WorkerSnapshot]) -> list[dict[str, Any]]:
    """Workers for status.json."""
    return [dict(zip(_NAMES, row, strict=True)) for row in map(_VALUES, workers)]


def _plain(value: Any) -> Any:
    """What JSON takes: `asdict` without its deep copies, which cost 20 ms a second at 128 instances."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not is_dataclass(value):
        return value
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
