"""What stale data costs in quality, and what the correction gives back: the quickstart over bounds and
seeds.

Every group waits until its last admissible step (`in_flight_batches: all`), so that the mean staleness is
near the bound. Quality is the mean reward on held-out prompts of the last policy version, which no train step
has seen. Differences are seed by seed, with their 95 % intervals: to the first bound of the first kind, and
with `--pairs` of the second kind to the first at the same bound. `--only corrected:0 sequence:8` makes no
other runs than these, and leaves out the cells of others. Runs that have ended are kept in
runs/staleness_quality, and not made again.
"""

import argparse
import json
import platform
import sys
from itertools import product
from statistics import fmean, stdev

from benchmarks.quickstart_runs import HELD_OUT, SAMPLES, QuickstartRuns
from controller.simulation.intervals import with_interval

RUNS = QuickstartRuns("staleness_quality")
KINDS = {
    "corrected": [],  # the quickstart's own: decoupled PPO with truncated importance weights
    "uncorrected": ["trainer.importance=none"],  # stale responses taken for the policy's own
    "behaviour_clip": [
        "trainer.proximal=rollout",
        "trainer.importance=none",
    ],  # PPO's clip around old policies
    "sequence": ["trainer.importance_level=sequence"],  # one weight per response
    "taper": ["trainer.importance=taper", "trainer.importance_level=sequence"],  # TOPR
    "icepop": ["trainer.importance=mask", "trainer.importance_low=0.5", "trainer.importance_cap=5"],
    "m2po": ["trainer.algorithm=m2po"],  # a bound on the second moment of the log ratios
    "kv_kept": ["staleness.keep_kv=true"],  # as corrected, weights change under running responses
}


def run(kind: str, bound: int, seed: int, steps: int) -> dict[str, float] | None:
    """The figures of one run; None if it failed."""
    name = f"{kind}_{bound}_{seed}_{steps}"
    settings = (f"run.steps={steps}", f"staleness.max_staleness={bound}", "staleness.in_flight_batches=all")
    if not RUNS.make(name, seed, (*settings, *KINDS[kind]), every_steps=steps):
        return None
    lines, judged = RUNS.lines(name, "metrics.jsonl"), RUNS.lines(name, "evaluations.jsonl")
    sizes = [line["importance_weight/ess"] for line in lines if "importance_weight/ess" in line]
    return {
        "before": judged[0]["reward/mean"],
        "after": judged[-1]["reward/mean"],
        "staleness": fmean(line["staleness/mean"] for line in lines),
        "gain": gain_at_the_end([line["reward/mean"] for line in lines]),
        "ess": fmean(sizes) if sizes else 1.0,
        "violations": RUNS.summary(name)["staleness/violations"],
    }


def spread(values: list[float]) -> str:
    """Mean and sample standard deviation."""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def against(first: list[dict[str, float]], some: list[dict[str, float]]) -> str:
    """Mean difference to another cell, seed by seed: the runs of a seed begin with one model."""
    base = {one["seed"]: one["after"] for one in first}
    differences = [one["after"] - base[one["seed"]] for one in some if one["seed"] in base]
    return f" ({with_interval(differences, '+.3f')})" if differences and some is not first else ""


def tell_pairs(found: dict[tuple[str, int], list[dict[str, float]]], kinds: list[str]) -> None:
    """The second kind against the first, bound by bound and over all bounds."""
    one, other = kinds[:2]
    every: dict[float, list[float]] = {}
    for bound in sorted({bound for _, bound in found}):
        here = found.get((one, bound), [])
        base = {row["seed"]: row["after"] for row in here}
        pairs = {row["seed"]: row["after"] - base[row["seed"]] for row in found.get((other, bound), [])
                 if row["seed"] in base}  # fmt: skip
        words = f"{with_interval([*pairs.values()], '+.3f')}, {len(pairs)} pairs"
        print(f"{other} less {one}, bound {bound}: {words}")
        for seed, difference in pairs.items():
            every.setdefault(seed, []).append(difference)
    means = [fmean(differences) for differences in every.values()]
    print(
        f"{other} less {one}, mean over bounds per seed: {with_interval(means, '+.3f')}, {len(means)} seeds"
    )


def gain_at_the_end(rewards: list[float]) -> float:
    """Of a run, per step: what a delay of one step costs whoever does nothing else wrong.

    `rewards`: the mean of each train batch; the last tenth of them against the tenth before.
    """
    part = max(1, len(rewards) // 10)
    return (fmean(rewards[-part:]) - fmean(rewards[-2 * part : -part])) / part


def main() -> int:
    """The exit code; prints a line for each run and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["corrected", "uncorrected"])
    parser.add_argument("--pairs", action="store_true", help="compare the second kind with the first, too")
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND:BOUND", help="of the kinds and bounds")
    options = parser.parse_args()
    possible = {f"{kind}:{bound}" for kind, bound in product(options.kinds, options.bounds)}
    if strange := {*options.only} - possible:
        parser.error(f"--only: {', '.join(sorted(strange))} is none of the kinds and bounds asked for")
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for seed, bound, kind in product(options.seeds, options.bounds, options.kinds):
        if f"{kind}:{bound}" not in (options.only or possible):
            continue
        if (figures := run(kind, bound, seed, options.steps)) is not None:
            found.setdefault((kind, bound), []).append(figures | {"seed": seed})
            print(json.dumps({"kind": kind, "bound": bound, "seed": seed, **figures}), flush=True)
    held_out = f"{HELD_OUT} held-out prompts x {SAMPLES}"
    print(f"\n{options.steps} steps, seeds {options.seeds}, {platform.machine()}, {held_out}")
    print(
        "| bound | mean staleness | "
        + " | ".join(options.kinds)
        + " |\n|---|---|"
        + "---|" * len(options.kinds)
    )
    first = found.get((options.kinds[0], options.bounds[0]), [])
    for bound in options.bounds:
        here = [found.get((kind, bound), []) for kind in options.kinds]
        ages = [one["staleness"] for some in here for one in some]
        cells = [f"{spread([one['after'] for one in some])}{against(first, some)}" if some else "-"
                 for some in here]  # fmt: skip
        print(f"| {bound} | {fmean(ages):.2f} | " + " | ".join(cells) + " |" if ages else f"| {bound} | - |")
    if first:
        gains = [one["gain"] for one in first]
        print(f"\nThe first kind at the first bound gains {with_interval(gains, '+.4f')} a step at its end.")
    if options.pairs and len(options.kinds) > 1:
        tell_pairs(found, options.kinds)
    return int(any(one["violations"] for some in found.values() for one in some))


if __name__ == "__main__":
    sys.exit(main())
