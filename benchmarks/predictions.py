"""What predictions are worth: `python -m benchmarks.predictions [--run RUN] [--devices 8]`.

Prints, against the limits of issue and docs: tokens per second that `simulate --from` predicts for the run's
own settings beside what the run did, of RUN (15 %) or of simulated runs of several strategies, bounds and
lengths (5 %); and the best split of devices that `simulate --gpus` finds beside the best of every split there
is, for three workloads (5 %). Exit code 1 if one is missed.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from controller.config.load import change_config
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.simulation.from_run import predict
from controller.simulation.splits import all_points, best_splits
from tests.support.recorded_run import record

REAL, SIMULATED, SPLIT = 0.15, 0.05, 0.05
STEPS = 40
RUNS = {
    "synchronous": ["staleness.strategy=sync", "staleness.max_staleness=0"],
    "bound 1": ["staleness.max_staleness=1"],
    "bound 2, two batches in flight": ["staleness.max_staleness=2", "staleness.in_flight_batches=2.0"],
    "areal, bound 2": ["staleness.strategy=areal", "staleness.max_staleness=2"],
    "bound by the trainer": ["staleness.max_staleness=2", "simulation.train_token_s=2e-3"],
    "two lengths": ["staleness.max_staleness=1", "simulation.workload.kind=bimodal"],
    "KV is kept": ["staleness.max_staleness=2", "staleness.keep_kv=true"],
}
WORKLOADS = {
    "bound by rollout": ["simulation.train_token_s=4e-4"],
    "bound by the trainer": ["simulation.train_token_s=4e-3"],
    "two lengths": ["simulation.train_token_s=1.2e-3", "simulation.workload.kind=bimodal"],
}


def settings(steps: int, instances: int, ranks: int = 1) -> Config:
    """A small run that every row changes a little."""
    return Config.model_validate(
        {
            "run": {"steps": steps},
            "rollout": {
                "instances": instances,
                "group_size": 4,
                "max_response_tokens": 200,
                "max_running": 16,
            },
            "trainer": {"batch_groups": 8, "ranks": ranks},
            "staleness": {"max_staleness": 1},
            "simulation": {"pull_s": 0.2, "attach_s": 0.1, "train_token_s": 1e-4},
        }
    )


def of_a_run(path: Path, name: str, limit: float) -> bool:
    """Whether its own settings are predicted within the limit."""
    began = time.process_time()
    with Recording(path) as recording:
        found = predict(recording, [])
    assert found.run is not None, "the run is too short"
    error = found.error or 0.0
    print(
        f"  {name:<34}{found.run[0]:9,.0f} tokens/s measured, {found.own.tokens_per_s:9,.0f} predicted: "
        f"{100 * error:+5.1f} % (limit {100 * limit:.0f} %); staleness {found.run[1]:.2f} and "
        f"{found.own.staleness_mean:.2f}; {time.process_time() - began:.1f} s of the processor",
        flush=True,
    )
    return abs(error) <= limit


def of_simulated_runs() -> list[bool]:
    """One verdict for each of RUNS."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, changes) in enumerate(RUNS.items()):
            path = Path(folder) / str(number)
            record(path, change_config(settings(STEPS, instances=3), changes), seed=number + 1)
            found.append(of_a_run(path, name, SIMULATED))
    return found


def of_splits(devices: int) -> list[bool]:
    """One verdict for each of WORKLOADS."""
    found = []
    for name, changes in WORKLOADS.items():
        config = change_config(settings(14, instances=3, ranks=2), changes)
        near = best_splits(config, devices, bounds=[0, 1, 2], seeds=[1])
        every = all_points(config, devices, bounds=[0, 1, 2], seeds=[1])
        best, brute = (max(points, key=lambda point: point.tokens_per_s) for points in (near, every))
        less = 1 - best.tokens_per_s / brute.tokens_per_s
        print(
            f"  {name:<34}{best.tokens_per_s:9,.0f} tokens/s found in {len(near)} simulations, "
            f"{brute.tokens_per_s:9,.0f} in all {len(every)}: {100 * less:.1f} % less "
            f"(limit {100 * SPLIT:.0f} %)",
            flush=True,
        )
        found.append(less <= SPLIT)
    return found


def main() -> int:
    """1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", default="", help="a real run, and nothing else")
    parser.add_argument("--devices", type=int, default=8)
    words = parser.parse_args()
    print(f"load of the machine: {', '.join(f'{load:.1f}' for load in os.getloadavg())}")
    print("a run's own settings, predicted from its journal")
    if words.run:
        return 0 if of_a_run(Path(words.run), Path(words.run).name, REAL) else 1
    verdicts = of_simulated_runs()
    print(f"the best split of {words.devices} devices")
    return 0 if all([*verdicts, *of_splits(words.devices)]) else 1


if __name__ == "__main__":
    sys.exit(main())
