"""Random values in every field of every message: `python -m benchmarks.fuzz_values [--messages N]`.

Runs of scripted workers, one kind of which lies: of what it says, one value anywhere is replaced, or it says
something at random. Values are drawn at the edges of types and from what the run knows (its groups, attempts,
versions, names, checksums), so that most pass the codec and many name something that exists. The core is
checked after every turn. Nothing may raise out of it, no invariant break, and every run must end: without a
word of the liar counting where it contradicts anything, and with every prompt trained once.
Invariant: all of a run is drawn from its seed: `--first SEED --worlds 1` reproduces a failure.
"""

import argparse
import os
import platform
import sys
import time
from collections import Counter

from tests.support.random_values import one


def main() -> int:
    """Print what was said and what failed; 1 if anything did."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=1_000_000, help="with a random value in them")
    arguments.add_argument("--worlds", type=int, default=1_000_000_000, help="runs, at most")
    arguments.add_argument("--first", type=int, default=0, help="seed")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = arguments.parse_args()
    began, said, totals = time.monotonic(), Counter[str](), Counter[str]()
    failures: list[str] = []
    seed = options.first
    while said.total() < options.messages and seed < options.first + options.worlds:
        if time.monotonic() - began > options.seconds:
            break
        verdict = one(seed)
        seed += 1
        said += verdict.said
        totals += Counter(events=verdict.events, closed=verdict.closed, ended_well=verdict.is_success)
        if verdict.failure:
            failures.append(verdict.failure)
            print(verdict.failure, flush=True)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one process")
    print(
        f"{said.total():,} messages with a random value in seeds {options.first} to {seed - 1}, "
        f"{totals['events']:,} events, {time.monotonic() - began:.0f} s"
    )
    print("of these " + ", ".join(f"{count:,} {kind}" for kind, count in said.most_common()))
    worlds = seed - options.first
    print(f"{totals['closed']:,} liars closed; {totals['ended_well']:,} of {worlds:,} runs ended well")
    print(f"{len(failures)} failed: exceptions, broken invariants, runs that do not end")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
