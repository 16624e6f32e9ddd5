"""What durability costs a whole run: `python -m benchmarks.durability_runs [CONFIG.yaml] [--steps N] ...`.

Real runs with real processes, `run.durability` off, process and power in turn. Without a configuration it is
the worst that can be made here: a model so tiny that a step takes a fifteenth of a second, so that a
controller writes a hundred times more per second of training than in a run worth its electricity. On few
cores what it takes is taken from the workers. Beside throughput, which swings, the time in which the store
held up the controller's event loop, as a share of the run.
"""

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import soak
from benchmarks.durability import KINDS
from controller import Config, Controller, load_config
from controller.durability.store import Store

Figures = dict[str, list[float]]


class Stopwatch:
    """Seconds spent in transactions of every store of this process."""

    def __init__(self) -> None:
        self.total_s = 0.0
        inner = Store.transaction

        @contextmanager
        def timed(store: Store) -> Iterator[None]:
            began = time.perf_counter()
            try:
                with inner(store):
                    yield
            finally:
                self.total_s += time.perf_counter() - began

        Store.transaction = timed  # type: ignore[method-assign]


async def trajectories_per_s(config: Config, skipped: int) -> float:
    """Trained trajectories per second of one run, without its first steps, which fill the pipeline."""
    async with Controller(config) as controller:
        times = [float(step.metrics["time_s"]) async for step in controller.train()]
    assert controller.summary["is_success"], controller.summary["reason"]
    trained = (len(times) - skipped) * config.trainer.batch_groups * config.rollout.group_size
    return trained / (times[-1] - times[skipped - 1])


def measure(base: Config, *, rounds: int, skipped: int) -> Figures:
    """All rates by kind; rounds differ in the order of the kinds."""
    found: Figures = {kind: [] for kind in KINDS}
    watch = Stopwatch()
    for turn in range(rounds):
        for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):  # none always comes first
            config = base.model_copy(update={"run": base.run.model_copy(update={"durability": kind})})
            began, held_s = time.perf_counter(), watch.total_s
            rate = asyncio.run(trajectories_per_s(config, skipped))
            share = (watch.total_s - held_s) / (time.perf_counter() - began)
            found[kind].append(rate)
            print(
                f"round {turn + 1} {kind}: {rate:.1f} trajectories/s, store {share:.2%} of the time",
                flush=True,
            )
    return found


def main() -> None:
    """Print every run, then medians and the median of the ratios of runs that were made one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", nargs="?")
    parser.add_argument("--steps", type=int, default=170)
    parser.add_argument("--skipped", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        base = (
            load_config(options.config, ("logging.console=quiet",))
            if options.config
            else soak.config(folder, 1)
        )
        own = {"dir": folder, "steps": options.steps, "resume": "never"}  # of the last one, the model is kept
        base = base.model_copy(update={"run": base.run.model_copy(update=own)})
        found = measure(base, rounds=options.rounds, skipped=options.skipped)
    for kind, rates in found.items():
        ratios = sorted(rate / off for rate, off in zip(rates, found["off"], strict=True))
        print(
            f"{kind}: {statistics.median(rates):.1f}/s ({min(rates):.1f} to {max(rates):.1f}), "
            f"{statistics.median(ratios):.3f} of off ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
