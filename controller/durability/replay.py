"""Replays a run's history through the core, which must give the same commands as in the run.

Invariants: the core is stepped with the recorded events at the recorded times and with nothing else; commands
are compared, never executed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import NamedTuple

from controller.config.models import Config
from controller.core.commands import Command, Send
from controller.core.core import Core
from controller.core.events import Event, Received, Restarted
from controller.durability.fingerprint import is_of
from controller.durability.recording import Recorded, Recording
from controller.durability.release import known_config
from protocol.errors import RunError, StaleFlowError
from strategies.kinds import SECTIONS, STRATEGIES, key_of

SHOWN_CHARS = 300  # of one event or command


class Replayed(NamedTuple):
    """One event, and the commands that the core gives for it now."""

    recorded: Recorded
    commands: list[Command]


@dataclass(slots=True)
class Verdict:
    """The result of a replay."""

    events: int = 0
    compared: int = 0  # events that have a fingerprint, and were not passed over
    unfingerprinted: int = 0  # the last events of a run that goes on, or of a killed controller
    commands: Counter[str] = field(default_factory=Counter)  # by the name of the message or command
    steps: int = 0  # train steps
    time_s: float = 0.0  # of the last event
    epochs: int = 1  # controller processes that the run has had
    finished: bool = False  # the history reaches the end of the run
    difference: Replayed | None = None  # the first event with other commands; the replay ended there

    @property
    def is_equal(self) -> bool:
        """Whether every fingerprint was met."""
        return self.difference is None


class CoreFailed(RunError):
    """The core raises at an event of the history, which is `recorded`."""

    def __init__(self, text: str, recorded: Recorded) -> None:
        super().__init__(text)
        self.recorded = recorded


def turns(
    recording: Recording, core: Core, after: int | None = None, until: int | None = None
) -> Iterator[Replayed]:
    """Step the core through the history, or through what follows event `after`, up to event `until`.

    Raises: CoreFailed naming the event at which the core fails; OtherRelease if the run went on with a
    configuration that this release does not know.
    """
    for recorded in recording.events(after, until):
        if isinstance(recorded.event, Restarted):
            other = recording.other_release(recorded.number)
            what = f"The configuration with which {recording.path} goes on at event {recorded.number}"
            known_config(recorded.event.config, what, other)
        try:
            commands = core.step(recorded.now, recorded.event, decides=not recorded.is_joined)
        except StaleFlowError:  # raised by code that watches the core
            raise
        except Exception as error:  # a bug of the core; a run of this release has met it, too
            frame = extract_tb(error.__traceback__)[-1]
            raise CoreFailed(
                f"The core fails at event {recorded.number} of {recording.path} ({in_words(recorded)}) with "
                f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno}). If the "
                "run failed there too, this replay is the way to find out why; if not, it is of another "
                "release. Please report it with run.db.",
                recorded,
            ) from error
        yield Replayed(recorded, commands)


def replay(
    recording: Recording, core: Core | None = None, *, on_turn: Callable[[Replayed], None] = lambda turn: None
) -> Verdict:
    """Derive every command anew and compare it with the journal's fingerprints, up to the first difference.

    `core`: the recording's own, if the caller watches it; `on_turn`: called with each event and its commands.
    Raises: RunError if the file is damaged or the core fails.
    """
    core = core or recording.make_core()
    verdict = Verdict()
    for turn in turns(recording, core):
        recorded = turn.recorded
        verdict.events, verdict.time_s = recorded.number, recorded.now
        verdict.commands.update(map(kind, turn.commands))
        verdict.compared += recorded.fingerprint is not None
        verdict.unfingerprinted += recorded.fingerprint is None
        on_turn(turn)
        if not is_of(recorded.fingerprint, turn.commands):
            verdict.difference = turn
            break
    verdict.steps, verdict.finished = core.state.steps, core.state.finished
    verdict.epochs = core.state.epoch
    return verdict


def verdict_in_words(verdict: Verdict, recording: Recording) -> str:
    """The verdict for a person, several lines."""
    commands = ", ".join(f"{count} {name}" for name, count in verdict.commands.most_common())
    words = [
        f"{verdict.events} events over {verdict.time_s:.1f} s, {verdict.steps} train steps"
        + (f", {verdict.epochs} epochs" if verdict.epochs > 1 else "")
        + ("" if verdict.finished or verdict.difference else "; the run's end is not among them"),
        f"{verdict.commands.total()} commands: {commands}",
    ]
    other = recording.other_release()
    if other:
        words.append(f"The run was made by another release: {other}.")
    if recording.pruned:
        words.append(
            f"The first {recording.pruned} events were deleted (run.journal is compact): the history begins "
            "with a snapshot."
        )
    for number, reason in recording.skipped.items():
        if reason:
            words.append(f"Event {number} was passed over when it came, and is here: {reason}")
    if undone := sum(not reason for reason in recording.skipped.values()):
        words.append(f"{undone} events behind such ones count as never heard, too.")
    if verdict.unfingerprinted:
        words.append(
            f"The last {verdict.unfingerprinted} events have no fingerprint: the run goes on, or its "
            "controller was killed (then they are the last of their epoch). They were replayed and not "
            "compared."
        )
    turn = verdict.difference
    if turn is None:
        words.append(f"Every command of {verdict.compared} events was re-derived bit for bit.")
    else:
        words.append(f"The first difference is at event {turn.recorded.number}, {in_words(turn.recorded)}.")
        words += ["It gives now:", *(f"  {shortened(repr(command))}" for command in turn.commands)]
        words += [] if turn.commands else ["  nothing"]
        words.append(f"Expected the commands that the run made; {_way_back(recording.config())}")
    return "\n".join(words)


def _way_back(config: Config) -> str:
    """What may have changed since the run so that it decides otherwise now, and what to do about it."""
    sections = {field: getattr(config, SECTIONS.get(field, "staleness")) for field in STRATEGIES}
    named = {field: str(getattr(section, field)) for field, section in sections.items()}
    own = [f"{key_of(field)} ({name})" for field, name in named.items() if name not in STRATEGIES[field]]
    if not own:
        return "use the release that made it."
    return (
        f"if {', '.join(own)} has been edited since, replay with it as it was; if not, use the release that "
        "made the run."
    )


def kind(command: Command) -> str:
    """The name of the message that a command sends, or of the command."""
    return type(command.message if isinstance(command, Send) else command).__name__


def in_words(recorded: Recorded) -> str:
    """An event with its time, on one line."""
    event: Event = recorded.event
    shown = f"{event.message!r} from {event.peer}" if isinstance(event, Received) else repr(event)
    return f"{recorded.now:.6f} s, {shortened(shown)}"


def shortened(text: str) -> str:
    """At most SHOWN_CHARS of a text."""
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
