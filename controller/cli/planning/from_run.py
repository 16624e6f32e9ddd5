"""`launch.py simulate --from RUN`: predicts a run with other settings, from its own journal."""

import json
from collections.abc import Sequence

from controller.cli.looking.history import ReadingProgress
from controller.cli.say import say
from controller.durability.recording import Recording
from controller.simulation.from_run import in_words
from controller.simulation.from_run import predict as predict_run


def predict(run: str, changes: Sequence[str], *, at: float | None, as_json: bool) -> None:
    """Print the run as measured, as simulated, and with the changes. Raises: ConfigError or RunError."""
    progress = ReadingProgress()
    with Recording(run, on_progress=progress.at_event) as recording:
        found = predict_run(recording, changes, at_s=at, tell=progress.say)
    say(json.dumps(found.as_json()) if as_json else in_words(found))
