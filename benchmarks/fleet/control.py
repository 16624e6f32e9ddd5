"""The controller process of a fleet: a real run, with a stopwatch beside it.

`python -m benchmarks.fleet.control FOLDER [options]`. It says `open` when workers may attach, hears `begin`
and `end` on its standard input, and prints after `end` what it has measured between them, as a line of JSON.
"""

import argparse
import asyncio
import cProfile
import json
import resource
import sys
import time
from array import array
from pathlib import Path

import numpy as np
import psutil
import uvloop

from benchmarks.fleet.rules import Rules, config, rows
from controller import Controller

LOOK_S = 0.02  # between two looks at how late the loop is


class Stopwatch:
    """What the controller takes between `begin` and `end`."""

    def __init__(self, controller: Controller, folder: Path, profile: str) -> None:
        self._controller, self._folder = controller, folder
        self._loop = asyncio.get_running_loop()
        self._late_s = array("d")
        self._timer: asyncio.TimerHandle | None = None
        self._profile_file = profile
        self._profile = cProfile.Profile() if profile else None
        self._before: dict[str, float] = {}
        self._running = 0

    def begin(self) -> None:
        """From here on it counts."""
        self._running = self._responses()
        self._before = self._counters()
        self._look(self._loop.time())
        if self._profile is not None:
            self._profile.enable()

    def end(self) -> dict[str, float]:
        """What was taken since `begin`."""
        if self._profile is not None:
            self._profile.disable()
            self._profile.dump_stats(self._profile_file)
        assert self._timer is not None
        self._timer.cancel()
        after = self._counters()
        found = {name: after[name] - value for name, value in self._before.items()}
        late_ms = 1e3 * np.asarray(self._late_s)
        for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
            found[f"lag_{name}_ms"] = float(np.percentile(late_ms, share))
        found["running_then"], found["running_now"] = self._running, self._responses()
        found["memory_mb"] = psutil.Process().memory_info().rss / 1e6
        found["memory_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6  # from KiB
        found["file_mb"] = sum(one.stat().st_size for one in self._folder.glob("run/run.db*")) / 1e6
        return found

    def _responses(self) -> int:
        """Responses that run on instances now, as the controller knows."""
        return sum(worker.running for worker in self._controller.snapshot().workers)

    def _counters(self) -> dict[str, float]:
        store = self._controller._shell._store
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # of snapshots: those that have ended
        return {
            "wall_s": time.monotonic(),
            "cpu_s": time.process_time(),
            "children_s": children.ru_utime + children.ru_stime,
            "events": store.last_event,
            "event_bytes": store.journal_bytes,
            "steps": self._controller._shell.core.state.steps,
        }

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self._late_s.append(max(0.0, now - due))
        self._timer = self._loop.call_at(now + LOOK_S, self._look, now + LOOK_S)


async def control(folder: Path, rules: Rules, profile: str) -> None:
    """Make the run until the parent has seen enough of it."""
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    warn = lambda text: print("warning:", text[:300], file=sys.stderr, flush=True)  # noqa: E731
    async with Controller(config(folder, rules), prompts=rows(), on_warning=warn) as controller:
        controller._shell._server._pause_s *= rules.slow  # as all that lasts: turns hold what they would hold
        print("open", flush=True)
        stopwatch = Stopwatch(controller, folder, profile)
        reader = asyncio.create_task(read(controller))  # unread steps would pile up
        while order := (await orders.readline()).decode().strip():
            if order == "begin":
                stopwatch.begin()
            else:
                print(json.dumps(stopwatch.end()), flush=True)
        if reader.done():
            reader.result()  # raises what has ended the run
        reader.cancel()


async def read(controller: Controller) -> None:
    """Take the steps as they come."""
    async for _ in controller.train():
        pass


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", default="")
    Rules.add_to(parser)
    options = parser.parse_args()
    uvloop.run(control(options.folder, Rules.of(options), options.profile))


if __name__ == "__main__":
    main()
