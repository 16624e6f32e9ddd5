"""Does asynchrony pay? Trained trajectories per second at max_staleness 2 against 0, in one run.

Twice: the quickstart on this machine's own cores, which all workers share; and the same controller and
workers with artificial latencies that take no core, where rollout and training of a batch take equally long,
so that the limit is 2.0. Runs alternate; the first steps (start-up, filling the pipeline) are left out.
"""

import argparse
import asyncio
import json
import shutil
from pathlib import Path
from statistics import fmean

from benchmarks import sleeping
from controller import Config, Controller, load_config

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
SKIPPED_STEPS = 5
CASES = ["own_cores", "artificial"]
RESPONSE_TOKENS = round(
    sleeping.TRAIN_STEP_S / sleeping.DECODE_STEP_S
)  # rollout of a batch takes a train step


def measure(bound: int, steps: int, overrides: list[str], model: Path) -> dict[str, float]:
    """Trajectories per second and idle shares of one run, without its first steps."""
    settings = [
        f"staleness.max_staleness={bound}",
        f"run.steps={steps}",
        f"run.name=bound_{bound}",
        "run.dir=runs/async_vs_sync",
        "run.resume=never",
        "staleness.in_flight_batches=auto",
        *overrides,
    ]
    run = Path("runs/async_vs_sync") / f"bound_{bound}"
    if model.exists() and not (run / "model").exists():
        shutil.copytree(model, run / "model")
    config = load_config(str(QUICKSTART), settings)
    lines = asyncio.run(train(config))
    if not model.exists():
        shutil.copytree(run / "model", model)
    kept = lines[SKIPPED_STEPS:]
    seconds = kept[-1]["time_s"] - lines[SKIPPED_STEPS - 1]["time_s"]
    per_step = config.trainer.batch_groups * config.rollout.group_size
    return {
        "trajectories_per_s": per_step * len(kept) / seconds,
        "idle_trainer": fmean(line["idle/trainer"] for line in kept),
        "idle_rollout": fmean(line["idle/rollout"] for line in kept),
        "staleness_mean": fmean(line["staleness/mean"] for line in kept),
    }


async def train(config: Config) -> list[dict[str, float]]:
    """The metrics of every step."""
    async with Controller(config) as controller:
        return [step.metrics async for step in controller.train()]


def main() -> None:
    """Print both comparisons as JSON lines and a ratio each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    arguments = parser.parse_args()
    artificial = [
        f"rollout.engine={ROOT / 'benchmarks' / 'sleeping.py'}:make_sleeping_engine",
        f"trainer.engine={ROOT / 'benchmarks' / 'sleeping.py'}:SleepingTrainer",
        f"rollout.max_response_tokens={RESPONSE_TOKENS}",
        "rollout.group_size=4",
        "rollout.max_running=256",
        "trainer.batch_groups=8",
        "trainer.minibatches=1",
        "staleness.mu=0",
    ]
    model = Path("runs/async_vs_sync/model")
    for name in arguments.cases:
        overrides = artificial if name == "artificial" else []
        results: dict[int, list[dict[str, float]]] = {0: [], 2: []}
        for _ in range(arguments.rounds):
            for bound in results:
                result = measure(bound, arguments.steps, overrides, model)
                results[bound].append(result)
                print(
                    json.dumps(
                        {"case": name, "max_staleness": bound, **{k: round(v, 3) for k, v in result.items()}}
                    )
                )
        rate = {bound: fmean(r["trajectories_per_s"] for r in some) for bound, some in results.items()}
        print(f"{name}: max_staleness 2 against 0: {rate[2] / rate[0]:.2f}x", flush=True)


if __name__ == "__main__":
    main()
