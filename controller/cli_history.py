"""The commands of launch.py that read a run's history: replay, story and trace.

Invariant: the run is only read, so that all of them may be used while it goes on.
"""

from typing import Annotated

import typer

from controller.config import Config
from controller.recording import Recording
from controller.replay import replay as replay_run
from controller.replay import verdict_in_words
from controller.shadow import Shadow, agreement_in_words, other_config
from controller.story import story as tell
from controller.trace import write_trace
from protocol.errors import ConfigError, RunError

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, or its run.db.")]
Strategy = Annotated[
    str | None, typer.Option(metavar="PRESET", help="Ask this strategy too, at each decision.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="staleness.KEY=VALUE", help="Ask with other knobs; may be repeated."),
]
Group = Annotated[int | None, typer.Option(metavar="GROUP", help="Tell the life of one group too.")]

At = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="When the other strategy takes over; default: half of the run."),
]


def replay(
    run: Run, strategy: Strategy = None, changes: Changes = None, at: At = None, story: Group = None
) -> None:
    """Re-derive every command of a run from its journal, and say whether they are the same bit for bit.

    With another strategy: what it would have decided at each point, and what it comes to in virtual time.
    """
    with Recording(run) as recording:
        if story is not None:
            _tell(recording, story)
        core, shadow, other = recording.make_core(), None, recording.config()
        if strategy is not None or changes:
            other = other_config(other, strategy, changes or [])
            shadow = Shadow(recording, core, other)
        elif at is not None:
            raise ConfigError(
                "--at says when another strategy takes over; name one with --strategy or --set."
            )
        verdict = replay_run(recording, core)
        print(verdict_in_words(verdict, recording))
        if shadow is not None:
            print("Asked at each decision, where this run stood then, the other strategy would have decided:")
            print(agreement_in_words(shadow.agreements))
            _go_on(recording, other, at)
    raise typer.Exit(0 if verdict.is_equal else 1)


def story(run: Run, group: Annotated[int, typer.Argument(help="Ordinal of its prompt, from 0.")]) -> None:
    """Tell the life of one group: every event and command that names it."""
    with Recording(run) as recording:
        _tell(recording, group)


def _go_on(recording: Recording, other: Config, at_s: float | None) -> None:
    from controller.simulation.whatif import go_on, in_words

    try:
        print(in_words(go_on(recording, other, at_s=at_s)))
    except (ConfigError, RunError) as error:
        if at_s is not None:  # it was asked for
            raise
        print(f"Not simulated on. {error}")


def _tell(recording: Recording, group: int) -> None:
    for line in tell(recording, group):
        print(line)


def trace(
    run: Run,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE.json", help="Where the trace goes.")
    ] = "trace.json",
) -> None:
    """Write a run's history as a trace of what each worker did, for Perfetto (ui.perfetto.dev)."""
    try:
        with Recording(run) as recording:
            count = write_trace(recording, output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}. Give another -o.") from error
    print(f"{count} entries are in {output}; open it in ui.perfetto.dev or chrome://tracing.")
