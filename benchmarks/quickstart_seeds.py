"""The quickstart over several seeds: does it learn, how long does it take, the bound kept, an alarm raised?

Every run starts from nothing (own model, own prompts) through the command line, as a user starts it.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]


def run(seed: int, overrides: list[str]) -> dict[str, object]:
    """One quickstart; its summary in a few figures."""
    name = f"seed_{seed}"
    folder = ROOT / "runs" / "quickstart_seeds" / name
    shutil.rmtree(folder, ignore_errors=True)  # else the run would go on, or find the model made
    settings = [f"run.seed={seed}", f"run.name={name}", "run.dir=runs/quickstart_seeds", *overrides]
    began = time.monotonic()
    command = [sys.executable, "launch.py", "examples/quickstart.yaml", *settings]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    wall_s = time.monotonic() - began
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    first = sum(line["reward/mean"] for line in lines[:10]) / 10
    last = sum(line["reward/mean"] for line in lines[-10:]) / 10
    equal = [line["groups/equal_rewards"] for line in lines]
    fresh = [line["engine/temperature"] for line in lines if "engine/temperature" in line]
    return {
        "seed": seed,
        "exit_code": done.returncode,
        "reward_first_10": round(first, 3),
        "reward_last_10": round(last, 3),
        "gain": round(last - first, 3),
        "wall_s": round(wall_s, 1),
        "staleness_max": max(line["staleness/max"] for line in lines),
        "violations": summary["staleness/violations"],
        "alarms": [line for line in done.stdout.splitlines() if "ALARM," in line],
        "engine": {
            "cut_max": round(max(line.get("engine/cut", 0.0) for line in lines), 5),
            "temperature_off": round(max((abs(one - 1) for one in fresh), default=0.0), 7),
            "fresh_batches": len(fresh),
        },
        "equal_rewards": round(max(fmean(equal[i : i + 5]) for i in range(len(equal) - 4)), 3),
        "tokens": {k.split("/")[1]: v for k, v in summary.items() if k.startswith("tokens/")},
    }


def main() -> None:
    """Print a line for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        print(json.dumps(run(seed, arguments.overrides)), flush=True)


if __name__ == "__main__":
    main()
