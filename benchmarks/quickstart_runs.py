"""Whole runs of the quickstart in a folder of their own, for benchmarks that compare what was learned.

Invariants: runs of one seed begin with the same model; one that has come to its end is not made again: delete
the folder to start over. One that has failed, or was stopped, goes on.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TASK = ROOT / "examples" / "ledger_task.py"
HELD_OUT_SEED, HELD_OUT, SAMPLES = 10_007, 128, 4


class QuickstartRuns:
    """The runs in runs/NAME of this checkout."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = ROOT / "runs" / name

    def make(self, run: str, seed: int, settings: Sequence[str], *, every_steps: int) -> bool:
        """Whether this run is there, made now if need be, with looks at held-out prompts; a failure is told.

        Raises: SystemExit if the model that it begins with cannot be made.
        """
        if self._has_ended(run):
            return True
        model = f"model_{seed}"
        if not (self._has_ended(model) or self._launch(model, (f"run.seed={seed}", "run.steps=1"))):
            raise SystemExit(f"No model for seed {seed}.")
        held_out = {"path": f"{TASK}:prompts", "max_prompts": HELD_OUT, "seed": HELD_OUT_SEED}
        own = (
            f"run.seed={seed}", "model.factory=null", f"model.path={self.folder / model / 'model'}",
            f"evaluation.every_steps={every_steps}", f"evaluation.samples={SAMPLES}",
            f"evaluation.data={json.dumps({'held_out': held_out})}",
        )  # fmt: skip
        return self._launch(run, (*own, *settings))

    def lines(self, run: str, file: str) -> list[dict[str, Any]]:
        """Those of metrics.jsonl or evaluations.jsonl."""
        return [json.loads(line) for line in (self.folder / run / file).read_text().splitlines()]

    def summary(self, run: str) -> dict[str, Any]:
        """Its summary.json."""
        return json.loads((self.folder / run / "summary.json").read_text())

    def _has_ended(self, run: str) -> bool:
        is_there = (self.folder / run / "summary.json").exists()
        return is_there and self.summary(run).get("ending", "done") == "done"  # older releases say none

    def _launch(self, run: str, settings: Sequence[str]) -> bool:
        own = (f"run.dir=runs/{self.name}", f"run.name={run}", "view.start=off", *settings)
        command = [sys.executable, "launch.py", "examples/quickstart.yaml", *own]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{run} failed: {done.stderr.strip()[-500:]}", flush=True)
        return done.returncode == 0
