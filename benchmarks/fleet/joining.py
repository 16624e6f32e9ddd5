"""How soon a fleet is there: `python -m benchmarks.fleet.joining [--workers 100] [--processes 4]`.

A real controller with keys, and so many simulated rollout workers in a few other processes, each behind a
connection of its own that shows a key. All are told to attach at one moment, with the trainer and a reward
worker already there. Said: when the controller has the first, half and all of them ready, and what attaching
cost it; then all vanish at once, and it is said when the controller has missed the last of them. Beside both,
the longest time for which the controller's loop did nothing else.
"""

import argparse
import asyncio
import cProfile
import os
import platform
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from benchmarks.fleet.__main__ import hear, start, tell
from benchmarks.fleet.emulator import Fleet, Member, member
from benchmarks.fleet.rules import Rules, config, rows
from controller import Controller
from controller.config.models import Config
from protocol.wire.descriptors import raise_limit
from protocol.wire.security import make_keys

LOOK_S = 0.005
PATIENT_S = 120.0
LEASE_S = 10.0  # those that vanish are missed after it
KEY = "node1"


def keyed(folder: Path, rules: Rules) -> Config:
    """The fleet's run, to which nobody attaches without a key."""
    made = config(folder, rules).model_dump()
    made["controller"] |= {"keys": str(folder / "keys"), "lease_s": LEASE_S}
    return Config.model_validate(made)


async def control(folder: Path, options: argparse.Namespace) -> None:
    """The controller, and when it knows whom."""
    rules = Rules(instances=options.workers, running=options.running, port=options.port)
    make_keys(folder / "keys", KEY, ("rollout", "reward", "trainer"))
    warn = lambda text: print("warning:", text[:300], file=sys.stderr, flush=True)  # noqa: E731
    processes = list[Process]()
    try:
        async with Controller(keyed(folder, rules), prompts=rows(), on_warning=warn) as controller:
            registry = controller._shell.core.state.registry
            first = 0
            for number in range(options.processes):
                count = (options.workers - first) // (options.processes - number)
                words = (folder, f"--workers={options.workers}", f"--port={options.port}", "--be=workers")
                processes.append(await start("joining", *words, f"--first={first}", f"--count={count}"))
                first += count
            for process in processes:
                await hear(process)  # it has its modules, and the first has attached who trains and scores
            with profiled(options.profile, "joined"):
                tell(processes, "begin")
                found = await reached(lambda: registry.ready_instances, options.workers)
            half = found.times[(len(found.times) - 1) // 2]
            print(
                f"{options.workers} workers in {options.processes} processes, told at once: the first ready "
                f"after {found.times[0]:.2f} s, half after {half:.2f} s, all after {found.in_words()}"
            )
            for process in processes:
                await hear(process)
            with profiled(options.profile, "gone"):
                tell(processes, "end")
                found = await reached(lambda: options.workers - registry.ready_instances, options.workers)
            print(
                f"vanished at once (a lease is {LEASE_S:g} s): the first is missed after "
                f"{found.times[0]:.2f} s, all after {found.in_words()}"
            )
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


class Reached(NamedTuple):
    """How a number was reached."""

    times: list[float]  # when each was counted, in seconds since the beginning
    cpu_s: float
    late_s: float  # the longest that the loop was late

    def in_words(self) -> str:
        """The end of it, and what it cost the controller."""
        each = 1e3 * self.cpu_s / len(self.times)
        return f"{self.times[-1]:.2f} s; {each:.1f} ms of its CPU each, its loop late by {self.late_s:.2f} s"


@contextmanager
def profiled(folder: Path | None, name: str) -> Iterator[None]:
    """With a folder, what this thread does goes to `NAME.prof` in it, by cProfile."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with cProfile.Profile() as profile:
        yield
    profile.dump_stats(folder / f"{name}.prof")


async def reached(count: Callable[[], int], most: int) -> Reached:
    """Waits until so many are counted. Raises: SystemExit after PATIENT_S."""
    began, cpu_s = time.monotonic(), time.process_time()
    times, late_s, looked = list[float](), 0.0, 0.0
    while len(times) < most:
        await asyncio.sleep(LOOK_S)
        now = time.monotonic() - began
        late_s, looked = max(late_s, now - looked - LOOK_S), now
        times += [now] * (count() - len(times))
        if now > PATIENT_S:
            raise SystemExit(f"{len(times)} of {most} after {now:.0f} s")
    return Reached(times, time.process_time() - cpu_s, late_s)


async def workers(folder: Path, options: argparse.Namespace) -> None:
    """Some of the workers, when the parent says so, until it says so."""
    raise_limit()
    rules = Rules(instances=options.workers, running=options.running, port=options.port)
    fleet, loop = Fleet(rules), asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    key = str(folder / "keys" / f"{KEY}.key")
    address = f"tcp://127.0.0.1:{options.port}"
    async with AsyncExitStack() as links, asyncio.TaskGroup() as tasks:
        running: list[asyncio.Task[None]] = []

        def begin(one: Member) -> None:
            links.push_async_callback(one._link.aclose)
            running.append(tasks.create_task(one.run()))

        if not options.first:
            for role in ("trainer", "reward"):
                begin(await member(fleet, address, role, 0, key=key))
        print("there", flush=True)
        await orders.readline()
        numbers = range(options.first, options.first + options.count)
        for one in await asyncio.gather(*[member(fleet, address, "rollout", n, key=key) for n in numbers]):
            begin(one)
        print("attached", flush=True)
        await orders.readline()
        for task in running:
            task.cancel()


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the controller, for its workers")
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--running", type=int, default=128, help="responses of each")
    parser.add_argument("--processes", type=int, default=4, help="that the workers live in")
    parser.add_argument("--port", type=int, default=28_631)
    parser.add_argument("--profile", type=Path, help="folder for joined.prof and gone.prof, by cProfile")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--be", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        uvloop.run(workers(options.folder, options))
        return
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as made:
        uvloop.run(control(Path(made).resolve(), options))


if __name__ == "__main__":
    main()
