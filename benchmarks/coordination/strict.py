"""The strict bound: a million operations against slots, a thousand simulated runs with faults.

Invariant: every run of the sweep draws all of its rules from its seed, so that a seed reproduces a failure.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.coordination.cells import Runner
from benchmarks.coordination.parts import Table
from tests.support.paper_slots import against_slots
from tests.support.random_rules import Swept, sweep

OPERATIONS, RUNS = 1_000_000, 1_000


def sweep_in_time(seed: int, *, ends: float) -> Swept | None:
    """As `sweep`, or None if the time is over before it begins."""
    return sweep(seed) if time.monotonic() < ends else None


def strict(runner: Runner) -> tuple[list[Table], list[dict[str, Any]]]:
    """Both, in tables; a failure stands in them with its seed."""
    share = 50 if runner.is_quick else 1
    with ProcessPoolExecutor(runner.processes, mp_context=get_context("fork")) as pool:
        jobs = [pool.submit(partial(against_slots, OPERATIONS // share // 4, seed=i)) for i in range(4)]
        runs = pool.map(partial(sweep_in_time, ends=runner.ends), range(RUNS // share), chunksize=4)
        swept = [one for one in runs if one is not None]
        totals = [job.result() for job in jobs]
    summed = {name: sum(found[name] for found in totals) for name in totals[0]}
    count = f"{summed['operations']:,}"
    rows = [[f"{count} random operations against slots, bounds 0 to 4, redundancy on and off", "0",
              f"{summed['trained']:,} groups trained, {summed['refused']:,} starts refused"]]  # fmt: skip
    for name, own in (("strict ledger", True), ("no promise", False)):
        these = [one for one in swept if one.is_strict == own and not one.failure]
        rows.append([f"{len(these)} simulated runs, {name}", str(sum(one.violations for one in these)),
                     f"{sum(one.trained for one in these):,} groups trained, none twice"])  # fmt: skip
    failures = [one.failure for one in swept if one.failure]
    rows += [[f"{len(failures)} simulated runs that failed", "", "; ".join(failures[:3]) or "none"]]
    note = "In half of the runs workers die or stall and messages are late. All is checked every fifth event."
    table = Table("Strict bound", ["what", "violations", "besides"], rows, note)
    return [table], [{"failures": failures, **summed}]
