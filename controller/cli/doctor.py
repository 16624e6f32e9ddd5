"""`launch.py doctor`: checks this machine for runs, and says how to mend what is missing."""

from pathlib import Path
from typing import Annotated

import typer

from controller.check.machine import readings
from controller.cli.say import say


def doctor(
    folder: Annotated[
        Path, typer.Option("--runs", metavar="FOLDER", help="Where runs will lie: `run.dir`.")
    ] = Path("runs"),
) -> None:
    """Check this machine for runs, part by part, and say how to mend what is missing."""
    counts = {"ok": 0, "note": 0, "error": 0}
    for reading in readings(folder):
        counts[reading.level] += 1
        say(f"{reading.level:5} {reading.part}: {reading.text}")
    errors, notes = counts["error"], counts["note"]
    say(f"{errors} error{'s' * (errors != 1)}, {notes} note{'s' * (notes != 1)}.")
    raise typer.Exit(1 if errors else 0)
