"""A long run in short: everything on, everything killed and stopped, and every promise kept."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.thorough
@pytest.mark.parametrize("spare_groups", [0, 1])
def test_five_hundred_steps_with_everything_on_lose_nothing(tmp_path: Path, spare_groups: int) -> None:
    command = [sys.executable, "-m", "benchmarks.long_run", str(tmp_path), "--steps=500"]
    command += [f"--spare_groups={spare_groups}", "--strikes=4", "--minutes=20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "broken: nothing" in done.stdout, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode == 0
