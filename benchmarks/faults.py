"""Ten thousand runs of the production core under every fault at once.

Invariant: all rules and faults of a run are drawn from its seed, so that a seed reproduces a failure:
`python -m benchmarks.faults --first SEED --seeds 1`.
"""

import argparse
import os
import platform
import sys
import time
from collections import Counter

from tests.support.fault_sweep import every_boundary, one


def main() -> int:
    """Print what was done and what failed; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=10_000)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--boundaries", type=int, default=1, help="runs crashed at each of their events")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = arguments.parse_args()
    began, done, events, failures, counts = time.monotonic(), 0, 0, list[str](), Counter[str]()
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        verdict = one(seed)
        done, events, counts = done + 1, events + verdict.events, counts + verdict.counts
        if verdict.failure:
            failures.append(verdict.failure)
            print(verdict.failure, flush=True)
    crashes = 0
    for seed in range(options.first, options.first + options.boundaries):
        count, failed = every_boundary(seed)
        crashes, failures = crashes + count, failures + failed
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one process")
    print(f"{done:,} of {options.seeds:,} seeds, {events:,} events, {time.monotonic() - began:.0f} s")
    print("done to them: " + ", ".join(f"{n:,} {what.removesuffix('_s')}" for what, n in counts.items() if n))
    print(f"{crashes:,} more runs, the controller killed at each event of {options.boundaries} runs in turn")
    print(f"{len(failures)} failed: lost prompts, prompts trained twice, broken bounds, runs without an end")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
