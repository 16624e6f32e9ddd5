"""Ten thousand steps of a fleet: `python -m benchmarks.fleet.soak [--steps 10000] [--speed 1000]`.

The real controller with its sockets and its journal, as in benchmarks.fleet, but its workers are `--speed`
times as fast, and batches are small: a run of days within minutes. It prints, `--rows` times, what memory the
controller has, how large its journal is, and how long it has taken. Its memory is flat if the last rows have
no more than the first of the second half.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.fleet.__main__ import hear, start, tell
from benchmarks.fleet.rules import Rules

LOOK_S = 2.0


async def soak(folder: Path, rules: Rules, steps: int, rows: int) -> list[dict[str, float]]:
    """What the controller says of itself, each time that a share of the steps was made."""
    control = await start("control", folder, *rules.words())
    started, found = [control], list[dict[str, float]]()
    try:
        await hear(control)
        words = ("--first=0", f"--count={rules.instances}", "--others")
        started.append(await start("emulator", folder / "run", *words, *rules.words()))
        await hear(started[1])
        tell([control], "begin")
        began = time.monotonic()
        while not found or found[-1]["steps"] < steps:
            await asyncio.sleep(LOOK_S)
            tell([control], "end")
            now = json.loads(await hear(control))
            if now["steps"] >= steps * (len(found) + 1) / rows:
                found.append(now)
                show(now, time.monotonic() - began)
        return found
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def show(now: dict[str, float], wall_s: float) -> None:
    """Print a row."""
    events = max(1, now["events"])
    print(
        f"| {now['steps']:,.0f} | {wall_s:,.0f} | {now['events']:,.0f} | {now['memory_mb']:.0f} | "
        f"{now['file_mb']:.0f} | {now['event_bytes'] / events:.0f} | {1e6 * now['cpu_s'] / events:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print a table; the exit code says nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=10)
    Rules.add_to(parser)
    parser.set_defaults(
        instances=128,
        running=4,
        speed=1000.0,
        batch_groups=4,
        progress_s="2",
        status_s="2",
        journal="compact",
    )
    options = parser.parse_args()
    rules = Rules.of(options)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    print(
        f"{rules.instances} instances x {rules.running}, batches of {rules.batch_groups} groups, workers "
        f"{rules.speed:g} times as fast as true ones, journal {rules.journal}"
    )
    print("| steps | s | events | memory MB | run.db MB | bytes an event | us an event |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(soak(Path(made).resolve(), rules, options.steps, options.rows))


if __name__ == "__main__":
    main()
