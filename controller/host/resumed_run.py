"""Re-derives the core of a run from its journal.

Invariants: the core is re-derived from the newest snapshot and the events after it, and refused if it gives
other commands than it gave then; a worker's message on which the core fails is passed over, at most
MAX_SKIPPED in a run; nothing is written.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.core.commands import ReportStep
from controller.core.core import Core
from controller.core.events import PeerFaulted, Received
from controller.durability.fingerprint import is_of
from controller.durability.recording import Recorded, Recording
from controller.durability.release import ReleasePart
from controller.durability.replay import CoreFailed, in_words, turns
from controller.host.collector import never_collected
from protocol.errors import OtherRelease, RunError, StaleFlowError
from protocol.files import exists
from protocol.plain_text import plain_line

MAX_SKIPPED = 3  # messages of workers on which the core may fail in a run; one more ends it as our bug
MAX_ERROR_CHARS = 500


@dataclass(slots=True)
class ResumedRun:
    """A run at its last journalled event."""

    core: Core
    now: float = 0.0  # seconds since the run began
    saved_lines: list[str] = field(default_factory=list)  # of metrics.jsonl, which snapshots have
    lines: list[dict[str, object]] = field(default_factory=list)  # the others, behind these
    replayed: int = 0  # events after the newest snapshot
    skipped: dict[int, str] = field(default_factory=dict)  # events newly skipped, and why
    faults: list[PeerFaulted] = field(default_factory=list)  # faults for which their authors will be closed
    forgiven: list[str] = field(default_factory=list)  # all forgiven invariants, if the run was just rewound
    is_over: bool = False  # whether all its steps are made and saved, or its data has ended
    notes: list[str] = field(default_factory=list)  # warnings, such as of damage that was worked around
    parts: list[ReleasePart] = field(default_factory=list)  # the releases that made it

    def metrics(self) -> list[str]:
        """All lines of metrics.jsonl, in JSON."""
        return [*self.saved_lines, *map(json.dumps, self.lines)]

    @property
    def newest_line(self) -> dict[str, Any] | None:
        """Last line of metrics.jsonl; None before the first train step."""
        if self.lines:
            return self.lines[-1]
        return json.loads(self.saved_lines[-1]) if self.saved_lines else None


def derive(recording: Recording, *, until: int | None = None) -> ResumedRun:
    """The run after event `until`, or at its end.

    Raises: RunError if the journal is damaged, or this release decides otherwise than the one that made it;
    CoreFailed.
    """
    past, after = _newest(recording, until)
    past.notes, past.parts = recording.notes, recording.parts
    for recorded, wanted in turns(recording, past.core, after, until):
        past.now, past.replayed = recorded.now, past.replayed + 1
        past.lines += [command.metrics for command in wanted if isinstance(command, ReportStep)]
        if not is_of(recorded.fingerprint, wanted):
            raise RunError(_decides_otherwise(recording, recorded))
    return past


def _decides_otherwise(recording: Recording, recorded: Recorded) -> str:
    """What to tell the user of a run whose event gives other commands now."""
    if other := recording.other_release(recorded.number):
        why = f"this release wants something else than the one that made the run ({other})"
    else:
        why = "something else is wanted than when this release made the run"
    return (
        f"{recording.path} cannot be taken up again: at event {recorded.number} ({in_words(recorded)}) "
        f"{why}, a strategy of yours has changed, or the file is damaged there. Use what made it, "
        f"{way_on_from(Path(recording.path).parent)}."
    )


def may_skip(error: BaseException | None) -> bool:
    """Whether a worker's message may be to blame for this error of the core.

    Not for a StaleFlowError, which is the user's mistake, nor for a lack of memory.
    """
    return not isinstance(error, StaleFlowError | MemoryError)


def fault_of(event: Received, error: BaseException | None) -> PeerFaulted:
    """The fault of the author of a message on which the core fails."""
    text = plain_line(str(error))[:MAX_ERROR_CHARS]
    word = type(event.message).__name__
    return PeerFaulted(event.peer, f"The core failed on its {word} with {type(error).__name__}: {text}.")


def derive_with_skips(recording: Recording, faults: list[PeerFaulted]) -> ResumedRun:
    """The run at its end, without the messages on which the core fails; their authors go into `faults`.

    Raises: as `derive`; OtherRelease if the core fails on an event on which it did not fail in the run.
    """
    skipped: dict[int, str] = {}
    while True:
        try:
            past = derive(recording)
        except CoreFailed as failed:
            number, event, error = failed.recorded.number, failed.recorded.event, failed.__cause__
            if failed.recorded.fingerprint is not None:  # what made the run gave commands for it
                raise OtherRelease(_fails_here(recording, failed)) from failed
            count = sum(bool(reason) for reason in recording.skipped.values())
            if not isinstance(event, Received) or not may_skip(error) or count >= MAX_SKIPPED:
                raise
            faults.append(fault_of(event, error))
            recording.skipped[number] = skipped[number] = faults[-1].reason
        else:
            past.skipped, past.faults = skipped, faults
            return past


def _fails_here(recording: Recording, failed: CoreFailed) -> str:
    """What to tell the user of an event on which the core fails here alone."""
    number, error = failed.recorded.number, failed.__cause__
    other = recording.other_release(number) or "it has the same numbers as this one"
    return (
        f"The core of this release fails at event {number} of {recording.path} ({in_words(failed.recorded)}) "
        f"with {type(error).__name__}: {plain_line(str(error))[:MAX_ERROR_CHARS]}; that of the release that "
        f"made the run did not ({other}). This is a bug: please report it with run.db."
    )


def _newest(recording: Recording, until: int | None) -> tuple[ResumedRun, int]:
    """The newest snapshot up to event `until`, or else the beginning; and the number of its last event."""
    there = (one for one in recording.snapshots() if until is None or one.number <= until)
    with never_collected():
        snapshot = next(there, None)
    if snapshot is None:
        return ResumedRun(recording.make_core()), recording.pruned
    lines = recording.lines(snapshot.core.state.steps)
    return ResumedRun(snapshot.core, snapshot.now, lines), snapshot.number


def way_on_from(run: Path) -> str:
    """What else can be done with a run that cannot be resumed; ends a sentence."""
    whole = [place.parent for place in run.glob("checkpoints/step_*/config.json")]
    places = [place for place in whole if not exists(place / "adapter_config.json")]
    numbered = {place.name.removeprefix("step_"): place for place in places}
    newest = max((number for number in numbered if number.isdigit()), key=int, default=None)
    begin = "or set run.resume=never to set the run aside and start over"
    if newest is None:
        return begin
    return (
        f"begin a new run from its newest checkpoint (run.resume={numbered[newest]} and another run.name), "
        f"{begin}"
    )
