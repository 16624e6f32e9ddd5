"""Does anything grow? `python -m benchmarks.soak [--steps N] [--every N] [--nice N]`.

A tiny run with real processes; every so many steps the resident memory of each of them is sampled and said.
At the end, per process, the slope of a least-squares line in MB per 100 steps, with its standard error, and
the aim. What a process takes while it warms up (the first tenth of the steps) is left out.
"""

import argparse
import asyncio
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from controller import Controller
from controller.config.models import Config

ROOT = Path(__file__).resolve().parents[1]
TASK = ROOT / "tests" / "tasks" / "even_digits.py"
AIM = 1.0  # MB per 100 steps; more fills 10 GB within a million steps
WARM_UP = 0.1  # of the steps
PATIENT_S = 600.0  # at low priority beside others a process may not get to speak for long
Sample = tuple[int, float]  # train step, resident megabytes


def config(folder: str, steps: int, **controller: object) -> Config:
    """A step takes a fraction of a second; everything that a run does, it does often."""
    patient = {"lease_s": PATIENT_S, "attach_timeout_s": PATIENT_S}
    return Config.model_validate(
        {
            "run": {"dir": folder, "name": "soak", "steps": steps},
            "model": {"factory": f"{TASK}:make_model"},
            "data": {"path": f"{TASK}:prompts"},
            "reward": {"function": f"{TASK}:reward"},
            "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 12, "max_running": 64},
            "trainer": {"batch_groups": 4, "lr": 0.001},
            "staleness": {"max_staleness": 2},
            "controller": patient | controller,
            "logging": {"console": "quiet"},
        }
    )


def resident() -> dict[str, float]:
    """Megabytes by process: the controller, its workers by name, and their own children by their parent."""
    me = psutil.Process()
    found = {"controller": me.memory_info().rss / 1e6}
    names: dict[int, str] = {}
    for process in me.children(recursive=True):
        try:
            words, parent = " ".join(process.cmdline()).split(), process.ppid()
            megabytes = process.memory_info().rss / 1e6
        except psutil.NoSuchProcess:
            continue
        name = next((word for flag, word in pairwise(words) if flag == "--name"), None)
        names[process.pid] = name or f"child of {names.get(parent, 'controller')}"
        found[f"{names[process.pid]} ({process.pid})"] = megabytes
    return found


def slope(samples: Sequence[Sample]) -> tuple[float, float]:
    """MB per 100 steps by least squares, and its standard error (nan below three samples)."""
    if len(samples) < 3:
        return math.nan, math.nan
    steps, megabytes = np.array(samples, dtype=float).T
    steps = (steps - steps.mean()) / 100
    spread = float((steps**2).sum())
    found = float((steps * megabytes).sum() / spread)
    rest = megabytes - megabytes.mean() - found * steps
    return found, math.sqrt(float((rest**2).sum()) / (len(samples) - 2) / spread)


async def soak(folder: str, *, steps: int, every: int) -> dict[str, list[Sample]]:
    """Samples by process, from a run in this folder."""
    samples: dict[str, list[Sample]] = {}
    started = time.monotonic()
    async with Controller(config(folder, steps), on_warning=print) as controller:
        async for step in controller.train():
            if step.policy_version % every:
                continue
            now = resident()
            for name, megabytes in now.items():
                samples.setdefault(name, []).append((step.policy_version, megabytes))
            listed = ", ".join(f"{name} {megabytes:.1f}" for name, megabytes in now.items())
            print(f"step {step.policy_version} ({time.monotonic() - started:.0f} s): {listed}", flush=True)
    assert controller.summary["is_success"], controller.summary["reason"]
    return samples


def report(samples: dict[str, list[Sample]], *, steps: int) -> str:
    """A table: first and last megabytes after the warm-up, slope, and whether the aim was met."""
    lines = [
        "| process | samples | MB, first to last | MB per 100 steps | under 1 |",
        "|---|---|---|---|---|",
    ]
    for name, all_of_it in samples.items():
        kept = [sample for sample in all_of_it if sample[0] > WARM_UP * steps]
        found, error = slope(kept)
        met = "too few samples" if math.isnan(found) else "yes" if found < AIM else "NO"
        ends = f"{kept[0][1]:.1f} to {kept[-1][1]:.1f}" if kept else "gone by then"
        lines.append(f"| {name} | {len(kept)} | {ends} | {found:+.3f} +- {error:.3f} | {met} |")
    return "\n".join(lines)


def main() -> None:
    """Print the machine, each sample, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=10, help="steps between two samples")
    parser.add_argument("--nice", type=int, default=10, help="lower the priority by so much")
    options = parser.parse_args()
    os.nice(options.nice)
    print(
        f"{os.cpu_count()} CPUs, Python {sys.version.split()[0]}, {platform.system()}, {options.steps} steps"
    )
    with tempfile.TemporaryDirectory() as folder:
        samples = asyncio.run(soak(folder, steps=options.steps, every=options.every))
    print(report(samples, steps=options.steps))


if __name__ == "__main__":
    main()
