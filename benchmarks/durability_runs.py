"""What durability costs a whole run: `python -m benchmarks.durability_runs [--steps N] [--rounds N]`.

Real runs with real processes, `run.durability` off, process and power in turn. The model is tiny and a step
takes a fraction of a second, so that the controller has far more to write per second of training than in a
run worth its electricity; on few cores what it takes is taken from the workers.
"""

import argparse
import asyncio
import os
import platform
import statistics
import tempfile
from pathlib import Path

from benchmarks import soak
from benchmarks.durability import KINDS
from controller import Controller

SKIPPED_STEPS = 20  # start-up, filling the pipeline


async def trajectories_per_s(folder: str, kind: str, steps: int) -> float:
    """Trained trajectories per second of one run, without its first steps."""
    config = soak.config(folder, steps)
    config = config.model_copy(update={"run": config.run.model_copy(update={"durability": kind})})
    async with Controller(config) as controller:
        times = [float(step.metrics["time_s"]) async for step in controller.train()]
    assert controller.summary["is_success"], controller.summary["reason"]
    trained = (steps - SKIPPED_STEPS) * config.trainer.batch_groups * config.rollout.group_size
    return trained / (times[-1] - times[SKIPPED_STEPS - 1])


def main() -> None:
    """Print every run, then medians and the median of the ratios of runs that were made one after another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=170)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for turn in range(options.rounds):
        for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):  # none always comes first
            with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
                rate = asyncio.run(trajectories_per_s(folder, kind, options.steps))
            found[kind].append(rate)
            print(f"round {turn + 1} {kind}: {rate:.1f} trajectories/s", flush=True)
    for kind, rates in found.items():
        ratio = statistics.median(rate / off for rate, off in zip(rates, found["off"], strict=True))
        median, low, high = statistics.median(rates), min(rates), max(rates)
        print(f"{kind}: {median:.1f}/s ({low:.1f} to {high:.1f}), {ratio:.3f} of off")


if __name__ == "__main__":
    main()
