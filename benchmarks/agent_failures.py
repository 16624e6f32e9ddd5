"""What agents that fail cost, in real runs: one that hangs, one that always raises, and 1 % of others.

    python -m benchmarks.agent_failures            all four, some minutes
    python -m benchmarks.agent_failures hangs      one of: hangs, raises, sometimes, nan

Each is a run of `launch.py` with real workers and the tiny model of tests/tasks. `hangs`: one environment
never answers while its worker goes on beating; printed are the seconds until the run gave it up, beside
`agent.turn_timeout_s`, and what `launch.py status` said meanwhile. `sometimes`, `nan`: one episode in 100.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TASK = ROOT / "tests" / "tasks" / "even_digits.py"
TURN_TIMEOUT_S = 5.0
WAYS = ("hangs", "raises", "sometimes", "nan")
AGENT = """
import asyncio, time
from pathlib import Path

HERE, WAY = Path(__file__).parent, "WAY_OF_RUN"

def is_chosen(policy, row, share=0.01):
    return hash((policy.seed, row["prompt"], time.monotonic_ns())) % 100 < 100 * share

async def episode(policy, row):
    if WAY == "raises":
        raise LookupError("the shop has no such shelf")
    tokens = [int(digit) for digit in row["prompt"] if digit.isdigit()]
    said = []
    for turn in range(3):
        answer = await policy.generate(tokens, max_tokens=3)
        said += [token for token in answer.token_ids if token < 10]
        tokens += [*answer.token_ids, 10]
        if WAY == "hangs" and turn == 1:
            try:
                (HERE / "hung").touch(exist_ok=False)
            except FileExistsError:
                continue
            (HERE / "hung").write_text(str(time.time()))
            try:
                await asyncio.sleep(3600)
            finally:
                (HERE / "freed").write_text(str(time.time()))
    if WAY == "sometimes" and is_chosen(policy, row):
        raise LookupError("the shop has no such shelf")
    if WAY == "nan" and is_chosen(policy, row):
        return float("nan")
    return sum(digit % 2 == 0 for digit in said) / max(1, len(said))
"""


def config(folder: Path, steps: int) -> Path:
    """The file of a run in this folder."""
    tree = {
        "run": {"dir": str(folder), "name": "run", "steps": steps},
        "model": {"factory": f"{TASK}:make_model"},
        "data": {"path": f"{TASK}:prompts"},
        "reward": {"function": ""},
        "agent": {"function": f"{folder}/agent.py:episode", "turn_timeout_s": TURN_TIMEOUT_S},
        "rollout": {
            "instances": 1, "group_size": 8, "max_prompt_tokens": 8, "max_response_tokens": 24,
            "max_running": 64,
        },
        "trainer": {"batch_groups": 4, "lr": 0.001},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(json.dumps(tree))  # which is YAML, too
    return path


def status(folder: Path) -> list[str]:
    """What `launch.py status` says of environments."""
    told = subprocess.run(
        [sys.executable, "launch.py", "status", str(folder / "run")], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return [line.strip() for line in told.stdout.splitlines() if "environment" in line]


def play(way: str, steps: int) -> dict[str, Any]:
    """One run, and what came of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "agent.py").write_text(AGENT.replace("WAY_OF_RUN", way))
        began, seen = time.monotonic(), []
        log = (folder / "log").open("w")
        run = subprocess.Popen(
            [sys.executable, "launch.py", str(config(folder, steps))], cwd=ROOT, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        while run.poll() is None:
            time.sleep(0.5)
            if (folder / "hung").exists() and not (folder / "freed").exists():
                seen += status(folder)
        found = {"way": way, "exit": run.returncode, "seconds": round(time.monotonic() - began, 1)}
        if (folder / "freed").exists():
            hung, freed = (float((folder / name).read_text()) for name in ("hung", "freed"))
            found |= {
                "turn_timeout_s": TURN_TIMEOUT_S,
                "given_up_after_s": round(freed - hung, 2),
                "status": seen[-1:],
            }
        summary = folder / "run" / "summary.json"
        if summary.exists():
            told = json.loads(summary.read_text())
            wasted = told["tokens/lost"] / max(1, told["tokens/generated"])
            names = ("episodes/failed_agent", "episodes/begun_anew", "episodes/timeouts", "prompts/set_aside")
            found |= {"steps": told["steps"], "wasted": f"{100 * wasted:.2f} %"}
            found |= {name: told["counts"][name] for name in names if told["counts"].get(name)}
        if run.returncode:
            found["said"] = (folder / "log").read_text()[-1500:]
        return found


def main() -> None:
    """Print a line for each."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("ways", nargs="*", choices=(*WAYS, []), default=[])
    arguments.add_argument("--steps", type=int, default=20)
    options = arguments.parse_args()
    for way in options.ways or WAYS:
        print(json.dumps(play(way, options.steps), indent=1), flush=True)


if __name__ == "__main__":
    main()
