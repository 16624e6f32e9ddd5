"""Steps the core of a live run: journals events first, and undoes a message on which the core fails.

Invariants: the events of a turn are written, with the payload that the core wants, in one transaction before
the core sees the first of them; of reports that come together, the core decides after the last one, unless it
fails: then each is stepped alone, so that only the worker at fault is closed; fingerprints are written with
the next turn's events, or at the end; dropped payload is deleted only after the core has passed a check since
then, and only for a few groups per turn. A message on which the core raises is skipped: the journal says so,
the core is derived again as it was before, and the worker is closed. After MAX_SKIPPED such messages in a run
the next one ends it as our bug, so that workers are not closed for it in a loop. An event without an author,
or a mistake in a user's strategy, ends the run at once.
Samples are copied with the next turn, before their payload may be deleted; a controller that is killed in
between loses those of one turn.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import inf

from controller.core.commands import Command, KeepSamples
from controller.core.core import Core
from controller.core.events import Event, HeldOutRead, PeerFaulted, PromptsRead, Received
from controller.core.hearing import REPORTS
from controller.durability.fingerprint import NOTHING, fingerprint
from controller.durability.recording import Recording
from controller.durability.sample_records import Corrections, corrections_of
from controller.durability.store import Store
from controller.host.resumed_run import MAX_SKIPPED, derive, fault_of, may_skip
from protocol.errors import LocalError, RunError
from protocol.ids import TrajectoryId
from protocol.messages import Attach, TrainStepFinished

Frames = tuple[bytes, ...]
DROPPED_AT_ONCE = 8
"""Groups whose payload one transaction deletes, a millisecond or two each, as a checkpoint drops all groups
of the batches that it covers. If the run ends before, a resumed run deletes the rest."""
log = logging.getLogger("staleflow.controller")


class Stepper:
    """A live core and its journal."""

    def __init__(self, store: Store, core: Core, *, on_skip: Callable[[str], None]) -> None:
        """`on_skip(text)` gets a warning about a message that was passed over."""
        self.core = core
        """The current core; another object after a message was passed over."""
        self.last = store.last_event
        """Number of the newest event."""
        self._store, self._on_skip = store, on_skip
        self._skipped = store.faults_skipped()
        self._first, self._digests = self.last + 1, list[bytes]()  # fingerprints that are not written yet
        self._joined: list[bool] = []  # of each event of this turn
        self._notes: dict[str, str] = {}  # facts that are not written yet
        self._samples: list[KeepSamples] = []  # samples that are not written yet
        self._corrections: dict[TrajectoryId, Corrections] = {}  # of the newest step, for its samples
        self._doomed = deque[tuple[int, int]]()  # (event, group): payload to delete, and what dropped it
        self._passed = inf if store.path == ":memory:" else 0  # events up to here are never undone

    def turn(self, now: float, batch: list[tuple[Event, Frames]]) -> list[Command]:
        """Write these events with their frames, and step them; returns what the core wants.

        Raises: RunError if the disk refuses; what the core raises, if no worker is to blame.
        """
        numbered = self._write(now, batch)
        if any(self._joined):
            wanted = self._together(now, numbered)
            if wanted is not None:
                return wanted
        return self._one_by_one(now, numbered)

    def _together(self, now: float, numbered: dict[int, Event]) -> list[Command] | None:
        """Step events that came together, with one decision for many reports.

        None if the core fails: then it is restored, and the journal has the events as separate ones.
        """
        wanted: list[Command] = []
        digests: list[bytes] = []
        try:
            for event, is_joined in zip(numbered.values(), self._joined, strict=True):
                commands = self.core.step(now, event, decides=not is_joined)
                digests.append(fingerprint(commands))
                wanted += commands
        except Exception as error:
            if not may_skip(error):
                raise
            log.exception("The core failed on one of %d events; each is tried alone.", len(numbered))
            self._take_apart()
            return None
        self._digests += digests
        self._samples += [command for command in wanted if isinstance(command, KeepSamples)]
        return wanted

    def _take_apart(self) -> None:
        with self._store.transaction():
            self.write_rest()
            self._store.separate(self._first, self.last)
        self.core = derive(Recording.live(self._store), until=self._first - 1).core

    def _one_by_one(self, now: float, numbered: dict[int, Event]) -> list[Command]:
        wanted: list[Command] = []
        faults: dict[str, PeerFaulted] = {}
        for number, event in numbered.items():
            if isinstance(event, Received) and event.peer in faults:
                self._digests.append(NOTHING)
                continue
            try:
                commands = self.core.step(now, event)
                self._digests.append(fingerprint(commands))
                wanted += commands
                self._samples += [command for command in commands if isinstance(command, KeepSamples)]
            except Exception as error:
                if not isinstance(event, Received) or not may_skip(error):
                    raise
                if self._skipped >= MAX_SKIPPED:
                    raise _our_bug(number, fault_of(event, error)) from error
                log.exception("The core failed on event %d.", number)
                faults[event.peer] = fault_of(event, error)
                more = [n for n, e in numbered.items() if n > number and _author(e) == event.peer]
                self._pass_over(number, more, faults[event.peer].reason)
        if faults:
            wanted += self.turn(now, [(fault, ()) for fault in faults.values()])
        return wanted

    def doom(self, groups: Iterable[int]) -> None:
        """Delete the payload of these groups later, once the run cannot be rewound to before now."""
        self._doomed.extend((self.last, group) for group in groups)

    def passed(self, number: int) -> None:
        """The core keeps its invariants after this event, so the run is never rewound to before it."""
        self._passed = max(number, self._passed)

    def note(self, facts: Mapping[str, str]) -> None:
        """Write facts about the run with the next turn; the last value of a name counts."""
        self._notes |= facts

    def write_rest(self) -> None:
        """Write what is left of the last turn, inside a transaction whose failure ends the run."""
        if self._digests:
            self._store.put_fingerprints(self._first, b"".join(self._digests))
            self._first, self._digests = self._first + len(self._digests), []
        self._write_samples()
        self._drop_some()
        for name, value in self._notes.items():
            self._store.put_fact(name, value)
        self._notes = {}
        self._store.settle()

    def _drop_some(self) -> None:
        doomed = list[int]()
        while len(doomed) < DROPPED_AT_ONCE and self._doomed and self._doomed[0][0] <= self._passed:
            doomed.append(self._doomed.popleft()[1])
        if doomed:
            self._store.drop(doomed)

    def _write_samples(self) -> None:
        """Copy samples before their payload is deleted; a failure does not end the run."""
        if not self._samples:  # corrections that are here wait for a step that the core has yet to hear of
            return
        samples, self._samples = self._samples, []
        corrections, self._corrections = self._corrections, {}
        if self._store.path == ":memory:":  # no other process could read them
            return
        for one in samples:
            try:
                room = self.core.state.config.samples.mb << 20
                self._store.keep_samples(one, room, corrections)
            except (RunError, LocalError) as error:
                log.warning("The samples of step %d were not kept: %s", one.step, error)

    def _write(self, now: float, batch: list[tuple[Event, Frames]]) -> dict[int, Event]:
        with self._store.transaction():
            self.write_rest()
            came: set[str] = set()
            events = [self._keep(event, frames, came) for event, frames in batch]
            self._joined = _joined(events)
            first = self._store.append_events(now, list(zip(events, self._joined, strict=True)))
        self._first, self.last = first, first + len(batch) - 1
        return dict(enumerate(events, first))

    def _keep(self, event: Event, frames: Frames, came: set[str]) -> Event:
        """Store the frames of an event; returns it, or the fault of a worker that claims orders it lacks.

        `came`: peers that have attached in this turn; an attaching one is added.
        """
        if isinstance(event, PromptsRead | HeldOutRead):
            for group, row in enumerate(frames, event.first_group):
                self._store.put_row(group, row)
        elif isinstance(event, Received) and isinstance(event.message, Attach):
            came.add(event.peer)
        elif frames and isinstance(event, Received):
            if event.peer in came:
                kind = type(event.message).__name__
                return PeerFaulted(event.peer, f"It sent {kind} before it had orders.")
            is_wanted, lie = self._look(event)
            if lie is not None:
                return PeerFaulted(event.peer, lie)
            if is_wanted and isinstance(event.message, TrainStepFinished):
                self._corrections = corrections_of(event.message, frames)
            elif is_wanted:
                self._store.put_frames(event.message, frames, event.peer)
        return event

    def _look(self, event: Received) -> tuple[bool, str | None]:
        """Whether the core wants the frames of a message, and why the message is implausible if not."""
        try:
            is_wanted = self.core.keeps_payload(event.peer, event.message)
            return is_wanted, None if is_wanted else self.core.foretelling(event.peer, event.message)
        except Exception:  # the core fails on the event itself as well, and then it is passed over
            log.exception("The core failed to look at a word of %s.", event.peer)
            return False, None

    def _pass_over(self, number: int, more: list[int], reason: str) -> None:
        """Skip event `number` and later messages `more` of its author, and restore the core before it."""
        began = time.monotonic()
        with self._store.transaction():
            self.write_rest()
            self._store.skip(number, reason)
            for one in more:
                self._store.skip(one, "")
        self._digests.append(NOTHING)
        self._skipped += 1
        self.core = derive(Recording.live(self._store), until=number - 1).core
        text = f"Event {number} was passed over ({self._skipped} of {MAX_SKIPPED} in a run): {reason}"
        self._on_skip(f"{text} Please report it with run.db.")
        log.warning("The core was derived again in %.1f s.", time.monotonic() - began)


def _our_bug(number: int, fault: PeerFaulted) -> RunError:
    return RunError(
        f"Event {number} ended the run: {fault.reason} It has failed on {MAX_SKIPPED} words of workers "
        "before, so no worker is to blame: this is a bug. Please report it with run.db and "
        "logs/controller.log."
    )


def _joined(events: list[Event]) -> list[bool]:
    """For each event of a turn, whether it is decided upon together with the next one."""
    *earlier, _ = [isinstance(event, Received) and isinstance(event.message, REPORTS) for event in events]
    return [*earlier, False]


def _author(event: Event) -> str | None:
    return event.peer if isinstance(event, Received) else None
