"""The examples of agents over several seeds, each beside its control: what do turns and tools bring?

Every run starts from nothing (own model, own prompts) through the command line, as a user starts it. A
control is the same training with one guess instead of five, or with the calculator off.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
FOLDER = "runs/agent_learning"
EXAMPLES = {
    "calculator": {"tools": (), "tools off": ("agent.options={is_on: false}",)},
    "guess": {
        "five turns": (),
        "one turn": ("agent.options={guesses: 1}",),
        "no turn_rewards": ("agent.turn_rewards=false",),
    },
}
WINDOW = 10  # steps that a mean is over
LEAST = 0.15  # by which a control stays lower


def run(example: str, label: str, seed: int, settings: list[str]) -> dict[str, object]:
    """One run; what it came to in a few figures."""
    name = f"{example}_{label.replace(' ', '_')}_{seed}"
    given = [f"run.seed={seed}", f"run.name={name}", f"run.dir={FOLDER}", *settings]
    began = time.monotonic()
    command = [sys.executable, "launch.py", f"examples/{example}.yaml", *given]
    code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
    wall_s = time.monotonic() - began
    folder = ROOT / FOLDER / name
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    rewards = [line["reward/mean"] for line in lines]
    return {
        "seed": seed,
        "run": f"{example}, {label}",
        "exit_code": code,
        "steps": len(lines),
        "reward_first": round(fmean(rewards[:WINDOW]), 3),
        "reward_last": round(fmean(rewards[-WINDOW:]), 3),
        "turns_first": round(fmean(line["turns/mean"] for line in lines[:WINDOW]), 2),
        "turns_last": round(fmean(line["turns/mean"] for line in lines[-WINDOW:]), 2),
        "wall_s": round(wall_s),
        "violations": summary["staleness/violations"],
    }


def main() -> int:
    """Print a line for each run and a verdict for each seed; 1 if a control comes too near."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=[*EXAMPLES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    is_good = True
    for example in arguments.examples:
        for seed in arguments.seeds:
            found: dict[str, float] = {}
            for label, settings in EXAMPLES[example].items():
                figures = run(example, label, seed, [*settings, *arguments.overrides])
                print(json.dumps(figures), flush=True)
                found[label] = float(str(figures["reward_last"]))
                is_good &= not figures["exit_code"] and not figures["violations"]
            learnt, control = [*found.values()][:2]
            print(f"{example}, seed {seed}: {learnt - control:+.3f} over the control", flush=True)
            is_good &= learnt - control >= LEAST
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
