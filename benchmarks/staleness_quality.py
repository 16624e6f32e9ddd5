"""What stale data costs in quality, and what the correction gives back: the quickstart over bounds and
seeds.

Every group waits until its last admissible step (`in_flight_batches: all`), so that the mean staleness is
near the bound. Quality is the mean reward on held-out prompts of the last policy version, which no train step
has seen. Differences are seed by seed, with their 95 % intervals: to the first bound of the first kind, and
with `--pairs` of the second kind to the first at the same bound. Invariants: runs of one seed begin with the
same model; one that has ended is not made again: delete runs/staleness_quality to start over.
"""

import argparse
import json
import platform
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from controller.simulation.intervals import with_interval

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs" / "staleness_quality"
TASK = ROOT / "examples" / "ledger_task.py"
KINDS = {
    "corrected": [],  # the quickstart's own: decoupled PPO with truncated importance weights
    "uncorrected": ["trainer.importance=none"],  # stale responses taken for the policy's own
    "behaviour_clip": [
        "trainer.proximal=rollout",
        "trainer.importance=none",
    ],  # PPO's clip around old policies
    "sequence": ["trainer.importance_level=sequence"],  # one weight per response
    "icepop": ["trainer.importance=mask", "trainer.importance_low=0.5", "trainer.importance_cap=5"],
    "m2po": ["trainer.algorithm=m2po"],  # a bound on the second moment of the log ratios
    "kv_kept": ["staleness.keep_kv=true"],  # as corrected, weights change under running responses
}
HELD_OUT_SEED, HELD_OUT, SAMPLES = 10_007, 128, 4


def launch(name: str, *settings: str) -> bool:
    """Whether the quickstart with these settings came to its end."""
    own = ("run.dir=runs/staleness_quality", f"run.name={name}", *settings)
    command = [sys.executable, "launch.py", "examples/quickstart.yaml", *own]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} failed: {done.stderr.strip()[-500:]}", flush=True)
    return done.returncode == 0


def model_of(seed: int) -> Path:
    """The model that all runs of a seed begin with, warm-started here if it is not there."""
    name = f"model_{seed}"
    if not (RUNS / name / "summary.json").exists() and not launch(name, f"run.seed={seed}", "run.steps=1"):
        raise SystemExit(f"No model for seed {seed}.")
    return RUNS / name / "model"


def run(kind: str, bound: int, seed: int, steps: int) -> dict[str, float] | None:
    """The figures of one run; None if it failed."""
    name = f"{kind}_{bound}_{seed}_{steps}"
    folder = RUNS / name
    if not (folder / "summary.json").exists():
        held_out = {"path": f"{TASK}:prompts", "max_prompts": HELD_OUT, "seed": HELD_OUT_SEED}
        settings = [
            f"run.seed={seed}", f"run.steps={steps}", "model.factory=null", f"model.path={model_of(seed)}",
            f"staleness.max_staleness={bound}", "staleness.in_flight_batches=all",
            f"evaluation.every_steps={steps}", f"evaluation.samples={SAMPLES}",
            f"evaluation.data={json.dumps({'held_out': held_out})}", *KINDS[kind],
        ]  # fmt: skip
        if not launch(name, *settings):
            return None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    judged = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    return {
        "before": judged[0]["reward/mean"],
        "after": judged[-1]["reward/mean"],
        "staleness": fmean(line["staleness/mean"] for line in lines),
        "violations": json.loads((folder / "summary.json").read_text())["staleness/violations"],
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


def main() -> int:
    """The exit code; prints a line for each run and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["corrected", "uncorrected"])
    parser.add_argument("--pairs", action="store_true", help="compare the second kind with the first, too")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for seed, bound, kind in product(options.seeds, options.bounds, options.kinds):
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
    if options.pairs and len(options.kinds) > 1:
        tell_pairs(found, options.kinds)
    return int(any(one["violations"] for some in found.values() for one in some))


if __name__ == "__main__":
    sys.exit(main())
