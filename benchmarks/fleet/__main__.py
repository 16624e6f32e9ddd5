"""What a fleet costs the controller: `python -m benchmarks.fleet [--instances 16] [--seconds 30]`.

A real controller process with its sockets and its journal, and N instances emulated in real time in other
processes: simulated engines behind links of their own, with payload of the true size. Groups of 16, lengths
lognormal with sigma 1.3 cut at 8,192 tokens, 25 tokens/s for each response, batches of 4N groups, bound 3.
The first responses are met in their middle, so that the fleet is in its stride at once.

Loop lag and latency count only where controller and fleet keep real time: it is said whether they did. Where
they do not, `--slow 4` makes an emulated second 4 real ones; the CPU time of an emulated second counts then.
`--profile FILE` runs the controller under cProfile, which makes it slower.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleet.rules import ROOT, Rules

KEPT_MS = 50.0  # late at p99, from which on a process has not kept real time


async def start(module: str, *words: object) -> Process:
    """Another process of the fleet."""
    command = (sys.executable, "-m", f"benchmarks.fleet.{module}", *map(str, words))
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, limit=1 << 28)


async def hear(process: Process) -> str:
    """Its next line. Raises: SystemExit if it has ended."""
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    if not line:
        code = await process.wait()
        raise SystemExit(f"A process of the fleet has ended with code {code}; its words are above.")
    return line


def tell(processes: list[Process], order: str) -> None:
    """The same order to all."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{order}\n".encode())


async def measure(folder: Path, options: argparse.Namespace) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """What the controller and each other process say of the time that counts."""
    rules, started = Rules.of(options), list[Process]()
    try:
        profile = [f"--profile={options.profile}"] if options.profile else []
        started.append(await start("control", folder, *profile, *rules.words()))
        await hear(started[0])
        run, first = folder / "run", 0
        for number in range(options.processes):
            count = (rules.instances - first) // (options.processes - number)
            others = ["--others"] if number == 0 else []
            words = (run, f"--first={first}", f"--count={count}", *others, *rules.words())
            started.append(await start("emulator", *words))
            first += count
        for process in started[1:]:
            await hear(process)
        await asyncio.sleep(options.warm_up * rules.slow)
        tell(started, "begin")
        await asyncio.sleep(options.seconds * rules.slow)
        tell(started, "end")
        controller, *fleet = [json.loads(await hear(process)) for process in started]
        tell(started, "")
        for process in started:
            await process.wait()
        return controller, fleet
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


def percentiles(seconds: list[float]) -> str:
    """In milliseconds."""
    if not seconds:
        return "none"
    p50, p99, most = np.percentile(1e3 * np.asarray(seconds), (50, 99, 100))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, max {most:.1f} ms"


def report(rules: Rules, controller: dict[str, float], fleet: list[dict[str, Any]]) -> None:
    """Print the figures."""
    total = {name: sum(one[name] for one in fleet) for name in ("messages", "deltas", "endings", "routes")}
    seconds = controller["wall_s"] / rules.slow
    cpu_s, events = controller["cpu_s"], controller["events"]
    late = [one for each in fleet for one in each["late_s"]]
    print(
        f"{rules.instances} instances x {rules.running}, progress every {rules.progress_s} s, status every "
        f"{rules.status_s} s, durability {rules.durability}, {seconds:.0f} emulated s of "
        f"{rules.slow:g} real s each"
    )
    print(f"running: {controller['running_then']:,.0f} responses when it begins to count, "
          f"{controller['running_now']:,.0f} at the end, of {rules.instances * rules.running:,}")  # fmt: skip
    print(f"{events / seconds:.0f} events/s, {total['deltas'] / seconds:.0f} deltas/s, "
          f"{total['endings'] / seconds:.1f} endings/s, {total['routes'] / seconds:.1f} routes/s, "
          f"{controller['steps']:.0f} train steps")  # fmt: skip
    print(f"controller: {100 * cpu_s / seconds:.1f} % of a core per emulated second, "
          f"{1e6 * cpu_s / max(1, events):.0f} us an event, "
          f"{1e6 * cpu_s / max(1, total['deltas']):.2f} us a delta "
          f"({controller['children_s']:.1f} s more in processes that take snapshots)")  # fmt: skip
    print(f"loop lag: p50 {controller['lag_p50_ms']:.1f} ms, p99 {controller['lag_p99_ms']:.1f} ms, "
          f"max {controller['lag_max_ms']:.1f} ms")  # fmt: skip
    print(f"last token to next route: {percentiles([one for each in fleet for one in each['route_s']])}")
    print(f"memory: {controller['memory_mb']:.0f} MB, at most {controller['memory_peak_mb']:.0f} MB")
    print(f"journal: {controller['event_bytes'] / max(1, events):.0f} bytes an event, "
          f"run.db {controller['file_mb']:.0f} MB")  # fmt: skip
    busy = max(each["cpu_s"] for each in fleet) / controller["wall_s"]
    is_kept = rules.slow == 1 and controller["lag_p99_ms"] <= KEPT_MS
    is_kept = is_kept and bool(late) and float(np.percentile(late, 99)) <= KEPT_MS / 1e3
    print(f"the fleet: {percentiles(late)} late; its busiest process took {100 * busy:.0f} % of a core")
    print("real time was kept" if is_kept else "real time was NOT kept: lag and latency do not count")


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="emulated, that count")
    parser.add_argument("--warm_up", type=float, default=20.0, help="emulated, before them")
    parser.add_argument("--processes", type=int, default=1, help="that emulate instances")
    parser.add_argument("--profile", default="", help="file for the controller's cProfile")
    parser.add_argument("--folder", type=Path, help="keep the run there")
    Rules.add_to(parser)
    options = parser.parse_args()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as made:
        folder = (options.folder or Path(made)).resolve()
        report(Rules.of(options), *asyncio.run(measure(folder, options)))


if __name__ == "__main__":
    main()
