"""What a version of age buys: throughput and mean staleness by `staleness.objective`, in virtual time.

Invariant: the production core in the simulation, on a quarter of the cluster of benchmarks.coordination;
sides of a ratio have the same seed, hence the same lengths.
"""

import argparse
import json
import platform
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import Any

from benchmarks.coordination.cells import WORKLOADS, cell
from controller.config.models import Config
from controller.simulation import Simulation, window
from controller.simulation.compare import TRANSIENT_STEPS
from controller.simulation.intervals import paired_ratio, with_interval

RULES: dict[str, tuple[bool, str | float]] = {
    "throughput": (False, "throughput"),
    "throughput, streaming": (True, "throughput"),
    "0.1, streaming": (True, 0.1),
    "fresh": (True, "fresh"),
    "fresh, whole batches": (False, "fresh"),
}
"""Whether batches are trained in parts, and the objective."""
Found = tuple[float, float]  # tokens/s, mean staleness


def measure(job: tuple[str, str, int, str, int, int]) -> Found:
    """The figures of one run."""
    shape, workload, bound, name, steps, seed = job
    is_streaming, objective = RULES[name]
    one = cell(workload, bound, shape=shape, scale=4, steps=steps, objective=objective)
    tree: dict[str, Any] = json.loads(one.config.model_dump_json())
    tree["trainer"]["streaming"] = is_streaming
    config = Config.model_validate_json(json.dumps(tree))
    outcome = Simulation(config, seed=seed, with_digest=False).run(max_events=20_000_000)
    figures = window(outcome.starts, max_staleness=bound, skip=TRANSIENT_STEPS)
    assert figures is not None, outcome.reason
    assert not figures.violations, "the bound was broken"
    return figures.tokens_per_s, figures.staleness_mean


def main() -> None:
    """Print a row per workload and rule."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=31)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--bound", type=int, default=3)
    arguments.add_argument("--shapes", nargs="+", default=["single"], choices=["single", "small"])
    arguments.add_argument("--processes", type=int, default=1)
    options = arguments.parse_args()
    seeds = range(1, options.seeds + 1)
    print(f"{platform.machine()}, Python {platform.python_version()}, virtual time, {options.seeds} seeds")
    print("| cluster | workload | objective | tokens/s | x throughput | staleness | a version of age buys |\n"
          + "|---" * 7 + "|")  # fmt: skip
    with ProcessPoolExecutor(options.processes, mp_context=get_context("fork")) as pool:
        for shape, workload in product(options.shapes, WORKLOADS):
            base: list[Found] = []
            for name in RULES:
                jobs = [(shape, workload, options.bound, name, options.steps, seed) for seed in seeds]
                found = list(pool.map(measure, jobs))
                base = base or found
                print(row((shape, workload, name), found, base), flush=True)


def row(names: tuple[str, ...], found: list[Found], base: list[Found]) -> str:
    """One line: the last cell is what the base gains over this, in percent of it, for each version older."""
    rates, others = [one for one, _ in found], [one for one, _ in base]
    age, older = fmean(age for _, age in found), fmean(age for _, age in base)
    gain = fmean(others) / fmean(rates) - 1
    buys = f"{gain / (older - age):+.1%}" if abs(older - age) > 0.05 else "-"
    ratio = with_interval(paired_ratio(rates, others))
    return f"| {' | '.join(names)} | {fmean(rates):,.0f} | {ratio} | {age:.2f} | {buys} |"


if __name__ == "__main__":
    main()
