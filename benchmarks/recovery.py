"""How long a controller takes from its start to its first new event, by the length of the run's journal.

Invariants: the journal is that of a simulated run, written as a controller writes it, with its snapshots; the
time is that of a new process, from before its first import until `Restarted` is in the journal. What is
measured without snapshots is the same file without them.
"""

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from controller.config.models import Config
from controller.core.commands import ReportStep
from controller.core.events import Event
from controller.durability import snapshots
from controller.durability.fingerprint import fingerprint
from controller.durability.fork import Picture
from controller.durability.release import release
from controller.durability.snapshots import Snapshots
from controller.durability.store import Store
from controller.simulation import Simulation

START = """
import time; began = time.perf_counter()
import asyncio, sqlite3, sys
from controller.config.models import Config
from controller.host.shell import Shell

async def main(run):
    config = Config.model_validate_json(open(run + "/config.json").read())
    shell = Shell(config, prompts=({"prompt": "0"} for _ in iter(int, 1)), on_step=print,
                  on_evaluation=print, on_warning=print, on_progress=lambda *_: None)
    await shell.open()
    for event in shell._first_events:
        shell._post(event)
    shell._is_held = False
    shell._turn()
    print(time.perf_counter() - began, shell.core.state.epoch, flush=True)
    __import__("os")._exit(0)

asyncio.run(main(sys.argv[1]))
"""


class Journaled(Simulation):
    """A simulated run that writes what a controller writes."""

    def __init__(self, config: Config, store: Store, *, most: int) -> None:
        super().__init__(config, seed=0, with_digest=False)
        self.store, self.most = store, most
        self.snapshots = Snapshots(store, is_compact=False)
        self.images: list[tuple[float, float, int]] = []
        self.decide = self._recorded

    def _recorded(self, now: float, event: Event):
        size = self.store.journal_bytes
        number = self.store.append_events(now, [(event, False)])
        wanted = self.core.step(now, event)
        self.store.put_fingerprints(number, fingerprint(wanted))
        for command in wanted:
            if isinstance(command, ReportStep):
                self.snapshots.add_line(command.metrics)
        size = self.store.journal_bytes - size
        if self.snapshots.is_due(events=1, journal_bytes=size, now=now):
            begin = time.perf_counter()
            picture = Picture(self.core)
            fork_s = time.perf_counter() - begin
            image = picture.wait()
            begin = time.perf_counter()
            self.store.put_snapshot(number, now, "", image)
            beside_s = fork_s + time.perf_counter() - begin
            self.snapshots.take(self.core, number=number, now=now)
            self.images.append((self.snapshots.pause_s, beside_s, number))
        if number >= self.most:
            raise TimeoutError
        return wanted


def settings(folder: Path) -> Config:
    """A run of 8 instances that does not end by itself."""
    return Config.model_validate({
        "run": {"name": "run", "dir": str(folder), "steps": 10**9},
        "rollout": {"instances": 8, "group_size": 8, "max_response_tokens": 2000, "max_running": 64},
        "trainer": {"batch_groups": 32},
        "simulation": {"workload": {"median_tokens": 300}},
    })  # fmt: skip


def make(folder: Path, events: int) -> list[tuple[float, float, int]]:
    """Write a run of so many events; returns the pause of each snapshot in seconds, taken by the loop and
    beside it, and its event."""
    config, run = settings(folder), folder / "run"
    run.mkdir(parents=True)
    (run / "config.json").write_text(config.model_dump_json())
    store = Store(run / "run.db")
    with store.transaction():
        facts = {"config": config.model_dump_json(), "run_dir": "", "import_paths": "[]"}
        for name, value in {**facts, "release": json.dumps(release())}.items():
            store.put_fact(name, value)
    simulation = Journaled(config, store, most=events)
    try:
        with store.transaction(), suppress(TimeoutError):
            simulation.run(max_events=10 * events)
    finally:
        store.close()
    return simulation.images


def start(run: Path) -> float:
    """Seconds from the start of a controller to its first new event."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", START, str(run)], capture_output=True, text=True,
                          env=environment, check=False)  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-2])


def main() -> None:
    """Print a row per length of journal."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments.add_argument("--without", type=int, default=100_000, help="longest without snapshots")
    arguments.add_argument("--every", type=int, default=snapshots.EVENTS, help="events between snapshots")
    options = arguments.parse_args()
    snapshots.EVENTS = options.every
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for events in options.events:
        with tempfile.TemporaryDirectory() as name:
            images = make(Path(name), events)
            run = Path(name) / "run"
            size_mb = (run / "run.db").stat().st_size / 1e6
            row = f"{events:,} events, {size_mb:.0f} MB, {len(images)} snapshots"
            if images:
                for where, column in (("by the loop", 0), ("beside it", 1)):
                    pauses = sorted(image[column] for image in images)
                    middle = pauses[len(pauses) // 2]
                    row += f", pause {where} median {1e3 * middle:.1f} ms, most {1e3 * pauses[-1]:.1f} ms"
                row += f", {events - images[-1][2]:,} events after the newest"
            print(f"{row}: first new event after {start(run):.2f} s", flush=True)
            if images and events <= options.without:
                with sqlite3.connect(run / "run.db") as db:
                    db.execute("DELETE FROM snapshots")
                db.close()
                print(f"  without snapshots {start(run):.2f} s", flush=True)


if __name__ == "__main__":
    main()
