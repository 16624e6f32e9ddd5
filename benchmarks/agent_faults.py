"""Two thousand runs of agents under every fault at once.

Invariants: a seed reproduces a failure: `python -m benchmarks.agent_faults --first SEED --seeds 1`; with
`--keep FILE`, seeds that this code has passed before are not run again, so that a sweep may be cut short.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

from controller.durability.release import release
from tests.support.agent_fault_sweep import one


class Swept(NamedTuple):
    """What came of one seed."""

    seed: int
    failure: str
    events: int
    counts: dict[str, int]
    cpu_s: float
    sources: str  # of the code that ran it


def run(seed: int) -> Swept:
    """One run."""
    began = time.process_time()
    verdict = one(seed)
    cpu_s = round(time.process_time() - began, 2)
    return Swept(seed, verdict.failure, verdict.events, dict(verdict.counts), cpu_s, release()["sources"])


def kept(file: Path | None) -> dict[int, Swept]:
    """What this code has done before, by seed; what failed is to be run again."""
    if file is None or not file.exists():
        return {}
    found = (Swept(*json.loads(line)) for line in file.read_text().splitlines())
    return {each.seed: each for each in found if each.sources == release()["sources"] and not each.failure}


def swept(seeds: list[int], processes: int) -> Iterator[Swept]:
    """Each seed's outcome, in the order in which they end."""
    if processes == 1:
        yield from map(run, seeds)
        return
    with Pool(processes) as pool:
        yield from pool.imap_unordered(run, seeds)


def main() -> int:
    """Print what was done and what failed; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=2000)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments.add_argument("--processes", type=int, default=1)
    arguments.add_argument("--keep", type=Path, help="a line per seed, to go on from")
    options = arguments.parse_args()
    wanted = range(options.first, options.first + options.seeds)
    before = kept(options.keep)
    done = [before[seed] for seed in wanted if seed in before]
    began = time.monotonic()
    for outcome in swept([seed for seed in wanted if seed not in before], options.processes):
        done.append(outcome)
        if outcome.failure:
            print(outcome.failure, flush=True)
        if options.keep is not None:
            with options.keep.open("a") as file:
                file.write(json.dumps(outcome) + "\n")
        if time.monotonic() - began > options.seconds:
            break
    failed = sum(bool(each.failure) for each in done)
    counts = sum((Counter(each.counts) for each in done), Counter[str]())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", end=", ")
    print(f"{options.processes} processes, code {release()['sources']}")
    print(f"{len(done):,} of {options.seeds:,} seeds ({len(before):,} of them before)", end=", ")
    print(f"{sum(each.events for each in done):,} events, {sum(each.cpu_s for each in done):,.0f} s of CPU")
    print("done to them: " + ", ".join(f"{n:,} {what.removesuffix('_s')}" for what, n in counts.items() if n))
    print(f"{failed} failed: lost prompts, prompts trained twice, broken bounds, runs without an end")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
