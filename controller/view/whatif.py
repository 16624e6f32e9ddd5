"""Runs predictions for the page What if: `launch.py simulate --from RUN`, as a process of lowest priority.

Invariants: one at a time, which can be cancelled, and no more than MOST_AN_HOUR; what a browser asks for is a
key and a plain word or number each, so that no import path and no file is ever named by one; it ends with the
view.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import sys
import time
from asyncio.subprocess import PIPE, Process
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from controller.config.sections.staleness import StalenessSettings
from protocol.errors import ConfigError
from protocol.importing import python_path
from strategies.routing import ROUTINGS

COMMAND = """
import os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
from controller.cli.main import main
sys.exit(main(sys.argv[1:]))
"""  # its standard input ends with the view, and then so does it
LOWEST = 19  # niceness
MOST_CHANGES = 12
MOST_AN_HOUR, HOUR_S = 10, 3600.0  # each takes a minute of a processor that a run may need
LAST_WORDS = 2_000  # characters of an error
MOST_PROGRESS = 200  # characters of a line
AT_ONCE = 65_536  # bytes
UTF8 = getincrementaldecoder("utf-8")
KEYS = (
    "staleness.max_staleness", "staleness.in_flight_batches", "staleness.strategy", "staleness.routing",
    "staleness.synchronization", "staleness.admission", "staleness.migration", "staleness.mu",
    "staleness.keep_kv", "staleness.pace", "rollout.instances", "rollout.max_running", "reward.workers",
    "reward.processes",
)  # fmt: skip
BUILT_IN = {
    "strategy": get_args(StalenessSettings.model_fields["strategy"].annotation),
    "routing": tuple(ROUTINGS),
}
"""Names that the page offers."""
VALUE = re.compile(r"[a-z_]{1,30}|\d{1,9}(\.\d{1,9})?")
Json = dict[str, Any]


def overrides(changes: Mapping[str, object]) -> list[str]:
    """Checked `key=value` words. Raises: ConfigError if one could be more than a setting."""
    if len(changes) > MOST_CHANGES:
        raise ConfigError(f"{len(changes)} changes; expected at most {MOST_CHANGES}.")
    for key, value in changes.items():
        if key not in KEYS:
            raise ConfigError(f"{key[:60]!r} cannot be changed here; expected one of {', '.join(KEYS)}.")
        if not isinstance(value, str) or not VALUE.fullmatch(value):
            raise ConfigError(f"{key} is {value!r:.60}; expected a plain word or a number from 0.")
    return [f"{key}={value}" for key, value in changes.items()]


class WhatIf:
    """The newest prediction of a view, which makes one at a time for all its runs."""

    def __init__(
        self,
        words: Sequence[str] = (sys.executable, "-P", "-c", COMMAND),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`words`: the command line that begins with `simulate`; `clock`: seconds that only grow."""
        self._words, self._clock = tuple(words), clock
        self._begun_s: list[float] = []  # of the last hour
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._state: Json = {"state": "none"}

    def state(self) -> Json:
        """`none`, `going` with its progress, `done` with its result, `failed` or `cancelled`."""
        return self._state

    async def begin(self, run: Path, changes: Mapping[str, object], at_s: float | None) -> Json:
        """Start a prediction. Raises: ConfigError if it may not begin now, or a change is none."""
        words = overrides(changes)
        if self._state["state"] == "going":
            raise ConfigError("A prediction goes on; wait for it, or cancel it.")
        self._count(run)
        command = [*self._words, "simulate", *words, "--from", str(run), "--json"]
        command += ["--at", str(at_s)] if words and at_s is not None else []  # else nothing takes over
        self._process = self._task = None  # those of one that was cancelled, which may still be ending
        self._state = {"state": "going", "changes": words, "run": run.name, "progress": "starting"}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_environment(), start_new_session=True
            )
        except OSError as error:
            self._state = {"state": "failed", "error": f"It could not be started: {error.strerror}."}
            return self._state
        with contextlib.suppress(ProcessLookupError):  # it may have ended already, and has said why
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST)
        self._task = asyncio.create_task(self._follow(self._process, words), name="what if")
        return self._state

    def _count(self, run: Path) -> None:
        """One more of this hour. Raises: ConfigError if it has had all."""
        now = self._clock()
        self._begun_s = [second for second in self._begun_s if now - second < HOUR_S]
        if len(self._begun_s) >= MOST_AN_HOUR:
            minutes = math.ceil((HOUR_S - (now - self._begun_s[0])) / 60)
            raise ConfigError(
                f"{MOST_AN_HOUR} predictions were begun within an hour, which is all that a view makes; the "
                f"next may begin in {minutes} min. On an idle machine: launch.py simulate --from {run}."
            )
        self._begun_s.append(now)

    async def cancel(self) -> Json:
        """End the one that goes on, if there is one."""
        if self._process is not None and self._process.returncode is None:
            self._state = {"state": "cancelled"}
            self._process.kill()
            if self._task is not None:
                await self._task
        return self._state

    async def _follow(self, process: Process, words: list[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        reading = asyncio.create_task(process.stdout.read(), name="what if, its result")
        last, decoder = "", UTF8(errors="replace")
        while part := await process.stderr.read(AT_ONCE):  # in pieces: a line may have any length
            last = (last + decoder.decode(part))[-LAST_WORDS:]
            if self._is_going_on() and (lines := last.rstrip().splitlines()):
                self._state = self._state | {"progress": lines[-1][-MOST_PROGRESS:].strip()}
        result = await reading
        code = await process.wait()
        if self._is_going_on():
            self._state = _outcome(code, result, last) | {"changes": words, "run": self._state["run"]}

    def _is_going_on(self) -> bool:
        """Whether the prediction of this task is the newest, and was not cancelled."""
        return self._task is asyncio.current_task() and self._state["state"] == "going"


def _outcome(code: int, result: bytes, last_words: str) -> Json:
    if code:
        told = [line for line in last_words.splitlines() if not line.startswith("[")]
        return {"state": "failed", "error": " ".join(told) or f"It ended with exit code {code}."}
    try:
        return {"state": "done", "result": json.loads(result)}
    except ValueError:
        return {"state": "failed", "error": "It said nothing that can be read."}


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": python_path()}
