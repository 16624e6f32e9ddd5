"""The model of the even-digits task, made once for all runs of a session.

Invariants: a run finds it as one that its user has put there; the product's own process makes it; a run whose
test is about the making does without.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASK = ROOT / "tests" / "tasks" / "even_digits.py"
PLACE = "EVEN_DIGITS_MODEL"
"""Variable with the path at which it is, or is to be: known to all processes of a session."""


def lay_model(run: Path) -> None:
    """Put the model into a run's folder, unless there is something already."""
    if PLACE in os.environ and not run.exists():
        shutil.copytree(_made(Path(os.environ[PLACE])), run / "model")


def _made(place: Path) -> Path:
    """The path of the model, which is made if nobody has made it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            make = ("-m", "workers.models.prepare", "--factory", f"{TASK}:make_model", "--seed", "0")
            command = [sys.executable, *make, "--directory", str(place)]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return place
