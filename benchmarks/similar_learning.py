"""Whether batches of similar length cost learning: the quickstart's task over a few epochs, with and without.

The same prompts in the same windows, one optimizer step a batch, every response weighed alike (as
docs/batches.md advises); only the sampler differs. Reward on held-out prompts after every `--every` steps;
between two such points it is interpolated, at equal trained tokens and at equal seconds. Runs that have ended
are kept in runs/similar_learning, and not made again.
"""

import argparse
import json
import platform
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.quickstart_runs import HELD_OUT, SAMPLES, TASK, QuickstartRuns
from controller.simulation.intervals import with_interval
from protocol.importing import load_object

RUNS = QuickstartRuns("similar_learning")
SAMPLERS = {"mixed": "in_order", "similar": "similar_length"}
Curve = list[tuple[float, float, float]]  # trained tokens, seconds of the run, reward on held-out prompts


def rows_of(seed: int, prompts: int) -> Path:
    """A file of so many prompts, which a run reads again and again."""
    path = RUNS.folder / f"prompts_{seed}_{prompts}.jsonl"
    source = load_object(f"{TASK}:prompts")(seed=seed)
    path.write_text("".join(f"{json.dumps(next(source))}\n" for _ in range(prompts)))
    return path


def curve(kind: str, seed: int, options: argparse.Namespace) -> tuple[Curve, dict]:
    """Held-out rewards of one run, and what its summary says of the sampler."""
    name = f"{kind}_{seed}_{options.steps}"
    settings = (
        f"run.steps={options.steps}", f"data.path={rows_of(seed, options.prompts)}",
        f"staleness.max_staleness={options.bound}", f"staleness.sampler={SAMPLERS[kind]}",
        "trainer.minibatches=1", "trainer.loss_aggregation=sequence_mean",
    )  # fmt: skip
    if not RUNS.make(name, seed, settings, every_steps=options.every):
        raise SystemExit(f"{name} failed, so there is nothing to compare.")
    lines, judged = RUNS.lines(name, "metrics.jsonl"), RUNS.lines(name, "evaluations.jsonl")
    tokens = [0.0, *np.cumsum([line["tokens"] for line in lines]).tolist()]
    times = [0.0, *(line["time_s"] for line in lines)]
    versions = [one["policy_version"] for one in judged]
    points = [
        (tokens[version], times[version], one["reward/mean"])
        for version, one in zip(versions, judged, strict=True)
    ]
    return points, RUNS.summary(name)


def at(points: Curve, place: float, column: int) -> float:
    """The reward where tokens (0) or seconds (1) were so many."""
    return float(np.interp(place, [one[column] for one in points], [one[2] for one in points]))


def main() -> None:
    """Print a line per run and the differences, similar less mixed, pair by pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--every", type=int, default=16, help="train steps between two looks")
    parser.add_argument("--prompts", type=int, default=512, help="in an epoch; 32 make a batch")
    parser.add_argument("--bound", type=int, default=1)
    options = parser.parse_args()
    RUNS.folder.mkdir(parents=True, exist_ok=True)
    last, by_tokens, by_time, areas = list[float](), list[float](), list[float](), list[float]()
    for seed in options.seeds:
        found: dict[str, Curve] = {}
        for kind in SAMPLERS:
            found[kind], told = curve(kind, seed, options)
            words = {key: told[key] for key in told if key.startswith("sampler/")}
            print(json.dumps({"kind": kind, "seed": seed, "points": found[kind], **words}), flush=True)
        mixed, similar = found["mixed"], found["similar"]
        tokens, seconds = (min(mixed[-1][column], similar[-1][column]) for column in (0, 1))
        last.append(similar[-1][2] - mixed[-1][2])
        by_tokens.append(at(similar, tokens, 0) - at(mixed, tokens, 0))
        by_time.append(at(similar, seconds, 1) - at(mixed, seconds, 1))
        areas.append(fmean(one[2] for one in similar) - fmean(one[2] for one in mixed))
    print(f"\n{options.steps} steps, bound {options.bound}, {options.prompts} prompts, "
          f"seeds {options.seeds}, {platform.machine()}, {HELD_OUT} held-out prompts x {SAMPLES}; "
          "similar less mixed:")  # fmt: skip
    rows = {"after the last step": last, "at equal trained tokens": by_tokens, "at equal seconds": by_time,
            "mean over all looks": areas}  # fmt: skip
    for name, differences in rows.items():
        print(f"| {name} | {with_interval(differences, '+.3f')} |")


if __name__ == "__main__":
    main()
