"""How far the cost model is from a machine after so many status reports, and what a report costs.

Invariant: the reports are simulated, with noise and pauses, and the machine's cost is known; the error is of
loads like those that were reported, relative to the latency of a decode step.
"""

import argparse
import os
import platform
import time
from itertools import pairwise
from statistics import fmean

from strategies.fitting import OnlineFit
from tests.support.published_engines import PUBLISHED
from tests.support.status_reports import LINEAR, TINY, Reports, errors, learn, wide

NAMED = {
    "7B TP1 (is the start)": PUBLISHED["7b-tp1"],
    "14B TP1": PUBLISHED["14b-tp1"],
    "32B TP2": PUBLISHED["32b-tp2"],
    "100 thousand parameters on a CPU, 3 ms": TINY,
    "no floor at all, 0.9 ms per trajectory": LINEAR,
}
REPORTS = 0, 10, 20, 50, 100, 300, 1000
PAUSES = 0.02
TIMED = 3000  # reports


def main() -> None:
    """Print the table and the time of a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    print(
        f"mean error in %, {options.seeds} seeds, noise 5 %, pauses {100 * PAUSES:g} %, after so many reports"
    )
    print("| machine | " + " | ".join(f"{count:,}" for count in REPORTS) + " |")
    print("|---|" + "---|" * len(REPORTS))
    for name, truth in NAMED.items():
        found: dict[int, list[float]] = {count: [] for count in REPORTS}
        for seed in range(options.seeds):
            fit, reports = OnlineFit(), Reports(seed, outliers=PAUSES)
            for before, count in zip((0, *REPORTS), REPORTS, strict=False):
                learn(fit, reports, truth, wide, count - before)
                found[count].append(fmean(errors(fit, truth, wide)))
        print(f"| {name} | " + " | ".join(f"{100 * fmean(each):.1f}" for each in found.values()) + " |")
    fit, reports = OnlineFit(), Reports(0, outliers=PAUSES)
    each = [reports.last, *(reports.next(TINY, *wide(reports.random)) for _ in range(TIMED))]
    began = time.thread_time()
    for before, after in pairwise(each):
        fit.observe(before, after)
    spent_us = 1e6 * (time.thread_time() - began) / TIMED
    print(
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}: "
        f"{spent_us:.0f} us a report, fits included"
    )


if __name__ == "__main__":
    main()
