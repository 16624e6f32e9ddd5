"""The commands of launch.py that read a run's history: replay and story.

Invariant: the run is only read, so that all of them may be used while it goes on.
"""

from typing import Annotated

import typer

from controller.recording import Recording
from controller.replay import replay as replay_run
from controller.replay import verdict_in_words
from controller.story import story as tell

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its run.db.")]


def replay(
    run: Run,
    story: Annotated[
        int | None, typer.Option(metavar="GROUP", help="Tell the life of one group too.")
    ] = None,
) -> None:
    """Re-derive every command of a run from its journal, and say whether they are the same bit for bit."""
    with Recording(run) as recording:
        if story is not None:
            _tell(recording, story)
        verdict = replay_run(recording)
        print(verdict_in_words(verdict, recording))
    raise typer.Exit(0 if verdict.is_equal else 1)


def story(run: Run, group: Annotated[int, typer.Argument(help="Ordinal of its prompt, from 0.")]) -> None:
    """Tell the life of one group: every event and command that names it."""
    with Recording(run) as recording:
        _tell(recording, group)


def _tell(recording: Recording, group: int) -> None:
    for line in tell(recording, group):
        print(line)
