"""The commands of launch.py that read a run's history: replay, story and trace.

Invariants: the run is only read, so all commands work while it goes on; arguments are checked before the
history is replayed, as far as that is possible; long work prints its progress every few seconds, on stderr.
"""

import time
from math import inf
from typing import Annotated

import typer

from controller.cli.command_line import RecordedRun
from controller.cli.looking.samples import show
from controller.cli.say import say
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import replay as replay_run
from controller.durability.replay import verdict_in_words
from controller.history.compare_strategies import Shadow, agreement_in_words, other_config
from controller.history.sample_text import SampleReader
from controller.history.story import story as tell
from controller.history.trace import worker_names, write_trace
from controller.simulation.measured import Measured
from protocol.errors import ConfigError, RunError

TELL_S = 2.0  # between two lines of progress
MOST_RESPONSES = 64  # of one group that are shown

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
    run: RecordedRun, strategy: Strategy = None, changes: Changes = None, at: At = None, story: Group = None
) -> None:
    """Re-derive every command of a run from its journal, and say whether they are the same bit for bit.

    With another strategy: what it would have decided at each point, and what it comes to in virtual time.
    """
    progress = ReadingProgress()
    with Recording(run, on_progress=progress.at_event) as recording:
        other = _other(recording, strategy, changes or [], at)
        if story is not None:
            _tell(recording, story)
        core, measured = recording.make_core(), Measured(at_once=recording.config().reward.processes)
        measured.begin(recording, core)
        shadow = Shadow(recording, core, other) if other else None
        verdict = replay_run(
            recording, core, on_turn=lambda turn: measured.take(turn.recorded, turn.commands)
        )
        say(verdict_in_words(verdict, recording))
        if other is not None and shadow is not None:
            say("Asked at each decision, where this run stood then, the other strategy would have decided:")
            say(agreement_in_words(shadow.agreements))
            if verdict.is_equal:
                _go_on(recording, other, at, measured, progress)
            else:
                say(
                    "Compared up to the first difference, and not simulated on: this core does not decide as "
                    "the one that made the run, so it does not stand where the run stood."
                )
    raise typer.Exit(0 if verdict.is_equal else 1)


class ReadingProgress:
    """Prints progress, at most every few seconds."""

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()

    def at_event(self, number: int, last: int) -> None:
        """Print how far the history is read."""
        self.say(f"event {number:,} of {last:,}")

    def say(self, text: str) -> None:
        """Print what is going on now."""
        now_s = time.monotonic()
        if now_s >= self._told_s + TELL_S:
            self._told_s = now_s
            say(f"[{now_s - self._began_s:4.0f} s] {text}", is_error=True)


def _other(
    recording: Recording, strategy: str | None, changes: list[str], at_s: float | None
) -> Config | None:
    """The configuration to compare with, or None. Raises: ConfigError if it cannot be compared."""
    from controller.simulation.whatif import refuse

    if strategy is None and not changes:
        if at_s is None:
            return None
        raise ConfigError("--at says when another strategy takes over; name one with --strategy or --set.")
    own = recording.config()
    other = other_config(own, strategy, changes)
    refuse(own, other, at_s=at_s)
    return other


def story(
    run: RecordedRun,
    group: Annotated[int, typer.Argument(help="Ordinal of its prompt, from 0.")],
    text: Annotated[bool, typer.Option("--text", help="Show the responses too, if they were kept.")] = False,
) -> None:
    """Tell the life of one group: every event and command that names it."""
    with Recording(run, on_progress=ReadingProgress().at_event) as recording:
        _tell(recording, group)
        if text:
            _show_text(recording, group)


def _go_on(
    recording: Recording, other: Config, at_s: float | None, measured: Measured, progress: ReadingProgress
) -> None:
    from controller.simulation.whatif import go_on, in_words

    try:
        found = go_on(recording, other, at_s=at_s, measured=measured, tell=progress.say, warn=say)
    except (ConfigError, RunError) as error:
        if at_s is not None:  # it was asked for
            raise
        say(f"Not simulated on. {error}")
    else:
        say(in_words(found))


def _tell(recording: Recording, group: int) -> None:
    for line in tell(recording, group):
        say(line)


def _show_text(recording: Recording, group: int) -> None:
    reader = SampleReader(recording)
    found = [sample for key in reader.kept() if key[1] == group and (sample := reader.read(*key))]
    if not found:
        say("Its text was not kept: `samples.groups` of each step are, and fewer where room is short.")
    show(found, most=MOST_RESPONSES, by="version")


def trace(
    run: RecordedRun,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Where it goes; FILE.json: Chrome's format.")
    ] = "trace.pftrace",
    begin_s: Annotated[float, typer.Option("--from", metavar="SECONDS", help="From then on.")] = 0.0,
    end_s: Annotated[float | None, typer.Option("--to", metavar="SECONDS", help="Until then.")] = None,
    workers: Annotated[str, typer.Option(metavar="NAME,NAME", help="Of these alone; default: all.")] = "",
) -> None:
    """Write a run's history as a trace of what each worker did, for Perfetto (ui.perfetto.dev)."""
    names = frozenset(name.strip() for name in workers.split(",") if name.strip())
    until_s = inf if end_s is None else end_s
    if until_s < begin_s:
        raise ConfigError(
            f"--to {until_s:g} is before --from {begin_s:g}; expected seconds of the run, in order."
        )
    with Recording(run, on_progress=ReadingProgress().at_event) as recording:
        if names and (unknown := names - (known := worker_names(recording))):
            raise ConfigError(
                f"No worker of {run} was ever called {', '.join(sorted(unknown))}. Expected some of "
                f"{', '.join(sorted(known)) or '(none)'}."
            )
        try:
            count = write_trace(recording, output, begin_s=begin_s, end_s=until_s, workers=names)
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror}. Give another -o.") from error
    if not count:
        raise ConfigError(
            f"{output} was not written: none of {', '.join(sorted(names)) or 'the workers'} did anything "
            f"from {begin_s:g} s to {until_s:g} s. Expected other seconds of the run, or other workers."
        )
    also = " or chrome://tracing" if output.endswith(".json") else ""
    say(f"{count} slices are in {output}; open it in ui.perfetto.dev{also}.")
