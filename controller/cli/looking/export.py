"""`launch.py export RUN --to TRACKER`: sends a run's lines to a tracker, also after the run's end."""

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.command_line import Run
from controller.cli.say import say
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.view.exports.beside import run_id
from controller.view.exports.jsonl_tail import StepLines
from controller.view.exports.trackers import make_tracker
from protocol.errors import ConfigError, RunError, StaleFlowError
from protocol.files import is_dir


def export(
    run: Run,
    to: Annotated[
        list[str],
        typer.Option(help="tensorboard, wandb, module:function or file.py:function."),
    ],
) -> None:
    """Send all steps of a run to a tracker, each once."""
    path = Path(run)
    if not is_dir(path):
        raise ConfigError(f"{run} is no run directory; expected one, such as runs/quickstart.")
    try:
        found = StepLines(path / "metrics.jsonl")
    except FileNotFoundError:
        raise _no_steps(path) from None
    except OSError as error:
        raise RunError(f"{path / 'metrics.jsonl'} cannot be read: {error.strerror}.") from error
    with found as lines:
        if not lines:
            raise _no_steps(path)
        config = _config(path).as_written().model_dump(mode="json")
        for name in to:
            try:
                tracker = make_tracker(name, path, config, run_id(path))
                tracker.begin(lines)
                tracker.close()
            except StaleFlowError:
                raise
            except (Exception, SystemExit) as error:  # the tracker's code, whose message is for the user
                raise RunError(f"{name} did not take the run: {type(error).__name__}: {error}") from error
            say(f"{len(lines)} steps of {run} are with {name}.")


def _no_steps(run: Path) -> RunError:
    return RunError(f"{run / 'metrics.jsonl'} has no steps, so there is nothing to send.")


def _config(run: Path) -> Config:
    with Recording(run) as recording:
        return recording.config()
