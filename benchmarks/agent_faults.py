"""Two thousand runs of agents under every fault at once.

Invariant: a seed reproduces a failure: `python -m benchmarks.agent_faults --first SEED --seeds 1`.
"""

import argparse
import os
import platform
import sys
import time
from collections import Counter

from tests.support.agent_fault_sweep import one


def main() -> int:
    """Print what was done and what failed; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=2000)
    arguments.add_argument("--first", type=int, default=0)
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = arguments.parse_args()
    began, done, events, failed, counts = time.monotonic(), 0, 0, 0, Counter[str]()
    for seed in range(options.first, options.first + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        verdict = one(seed)
        done, events, counts = done + 1, events + verdict.events, counts + verdict.counts
        if verdict.failure:
            failed += 1
            print(verdict.failure, flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one process")
    print(f"{done:,} of {options.seeds:,} seeds, {events:,} events, {time.monotonic() - began:.0f} s")
    print("done to them: " + ", ".join(f"{n:,} {what.removesuffix('_s')}" for what, n in counts.items() if n))
    print(f"{failed} failed: lost prompts, prompts trained twice, broken bounds, runs without an end")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
