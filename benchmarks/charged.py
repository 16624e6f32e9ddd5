"""Staleflow against the best strict preset with everything charged: `python -m benchmarks.charged`.

The cells of benchmarks.coordination (`--shapes`, `--workloads`, `--bounds`), on clusters divided by
`--scale`, with CHARGES on top: scoring, publishing, pulls beside each other, recomputed logprobs and the
controller's own time. KV kept, and not. Both presets get the same lengths, seed by seed, so each cell is a
mean of differences with half of its 95 % interval. BEHIND marks a cell in which greedy is ahead by more than
1 %; `in doubt` one whose interval holds 0.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from benchmarks.coordination.cells import cell, run
from controller.simulation.intervals import half_width

CHARGES = (
    ("event_s", 0.0002), ("publish_s", 2.5), ("pulls_at_once", 8), ("recompute_share", 0.33),
    ("score_s", 0.08),
)  # fmt: skip
"""docs/simulation.md has where they come from; 8 pulls at once: one per GPU of a machine."""
WORKLOADS = ("lognormal", "bimodal", "power_law", "uniform")
PRESETS = ("staleflow", "greedy")
BEHIND = -0.01


def main() -> None:
    """Print a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["single", "groups"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--bounds", nargs="+", type=int, default=[1, 3])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=41)
    parser.add_argument("--scale", type=int, default=4)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    charges = ", ".join(f"{key} {value:g}" for key, value in CHARGES)
    print(f"charges: {charges}")
    print(f"clusters divided by {options.scale}, {options.seeds} seeds, {options.steps} steps")
    print("| shape | workload | bound | KV | staleflow, of bound | staleness | against greedy | |")
    print("|---|---|---|---|---|---|---|---|")
    ahead = behind = 0
    rows: list[tuple[str, str, int, bool]] = list(
        product(options.shapes, options.workloads, options.bounds, (True, False))
    )
    with ProcessPoolExecutor(options.processes) as pool:
        for shape, workload, bound, is_kept in rows:
            rest = {"shape": shape, "steps": options.steps, "scale": options.scale, "charges": CHARGES}
            seeds = range(1, options.seeds + 1)
            cells = [
                cell(workload, bound, preset, seed=seed, keep_kv=is_kept, **rest)
                for preset, seed in product(PRESETS, seeds)
            ]
            found = list(pool.map(run, cells))
            if failed := [one["failure"] for one in found if "failure" in one]:
                sys.exit(f"{shape} {workload} {bound}: {failed[0]}")
            ours, others = found[: options.seeds], found[options.seeds :]
            gains = [
                a["trajectories_per_s"] / b["trajectories_per_s"] - 1
                for a, b in zip(ours, others, strict=True)
            ]
            mean, width = sum(gains) / len(gains), half_width(gains) or float("nan")
            verdict = "BEHIND" if mean < BEHIND else "" if mean > width else "in doubt"
            ahead, behind = ahead + (mean > width), behind + (mean < BEHIND)
            share = sum(a["trajectories_per_s"] / a["upper_bound"] for a in ours) / len(ours)
            age = sum(a["staleness_mean"] for a in ours) / len(ours)
            kept = "kept" if is_kept else "not"
            gain = f"{100 * mean:+.1f} +-{100 * width:.1f} %"
            print(
                f"| {shape} | {workload} | {bound} | {kept} | {share:.2f} | {age:.1f} | {gain} | {verdict} |"
            )
            sys.stdout.flush()
    print(f"ahead beyond the interval in {ahead} of {len(rows)} cells, behind by over 1 % in {behind}")


if __name__ == "__main__":
    main()
