"""What durability costs a controller that is busy: the same events with `run.durability` off, process, power.

Invariants: the events of one simulated run go through store and core in groups, as a controller takes them;
the kinds take turns in one process, so that their ratios are of one machine in one state.
"""

import argparse
import gc
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.recovery import settings
from controller.config.strategies import load_strategies
from controller.core.core import Core
from controller.core.events import Event
from controller.durability.fingerprint import fingerprint
from controller.durability.store import Durability, Store
from controller.simulation import Simulation

KINDS: tuple[Durability, ...] = ("off", "process", "power")


class Recorded(Simulation):
    """Keeps what its core is told."""

    def __init__(self, *, events: int) -> None:
        super().__init__(settings(Path("none")), with_digest=False)
        self.told: list[tuple[float, Event]] = []
        self.most = events

    def _deliver(self, event: Event) -> None:
        self.told.append((self._now, event))
        super()._deliver(event)
        if len(self.told) >= self.most:
            raise TimeoutError


def seconds(
    told: list[tuple[float, Event]], kind: Durability, *, group: int, folder: Path
) -> tuple[float, float]:
    """Wall and CPU time for journal and core to take them all, `group` events in a transaction."""
    config = settings(Path("none"))
    core = Core(config, load_strategies(config))
    store = Store(folder / f"{time.monotonic_ns()}.db", durability=kind)
    digests, first = b"", 0
    gc.collect()
    began, cpu = time.perf_counter(), time.process_time()
    for begin in range(0, len(told), group):
        batch = told[begin : begin + group]
        with store.transaction():
            if digests:
                store.put_fingerprints(first, digests)
            numbers = [store.append_events(now, [(event, False)]) for now, event in batch]
        digests, first = b"".join(fingerprint(core.step(*one)) for one in batch), numbers[0]
    taken = time.perf_counter() - began, time.process_time() - cpu
    store.close()
    return taken


def main() -> None:
    """Print events per second by kind and size of group, and ratios to `off`."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=5_000)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    recorded = Recorded(events=options.events)
    try:
        recorded.run()
    except TimeoutError:
        told = recorded.told
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, median of rounds")
    for group in (1, 16, 128):
        taken: dict[Durability, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(options.rounds):
                for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):  # none always comes first
                    taken[kind].append(seconds(told, kind, group=group, folder=Path(folder)))
        middle = {kind: [statistics.median(column) for column in zip(*times, strict=True)]
                  for kind, times in taken.items()}  # fmt: skip
        cells = [
            f"{kind} {len(told) / wall:,.0f}/s ({wall / middle['off'][0] - 1:+.1%}, CPU "
            f"{cpu / middle['off'][1] - 1:+.1%})" for kind, (wall, cpu) in middle.items()
        ]  # fmt: skip
        print(f"{group:4} events a transaction, time against off: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
