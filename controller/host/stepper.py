"""Steps the core of a live run: what comes is written first, and a word that the core fails on is undone.

Invariants: the events of a turn are written, with the payload that the core wants, in one transaction before
it sees the first of them; of reports that come together, it decides after the last one, unless it fails: then
each is stepped alone, so that only the worker at fault pays; their fingerprints are written with the next
turn's events, or at the end; payload is deleted only when the core has passed a check since it was dropped,
and in each turn that of a few groups. A word of a worker that makes the core raise counts as never heard: the
journal says so, the core is derived again from the journal as it stood before, and the worker is closed.
After past.MAX_SKIPPED such words in a run the next one ends it: then it is our bug, and no worker is closed
for it in a loop. An event without an author, and a mistake in a strategy of the user's, end the run at once.
Samples are copied here, with the next turn, before their payload may be deleted; a controller that is killed
in between leaves those of one turn out.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
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
"""Groups whose payload one transaction deletes, a millisecond or two each: a checkpoint drops those of all
the batches that it covers. A run that ends before leaves the rest to who takes it up."""
log = logging.getLogger("staleflow.controller")


class Stepper:
    """A live core and its journal."""

    def __init__(self, store: Store, core: Core, *, on_skip: Callable[[str], None]) -> None:
        """`on_skip(text)` is told, for a person, of a word that was passed over."""
        self.core = core
        """As it stands; another object after a word was passed over."""
        self.last = store.last_event
        """Number of the newest event."""
        self._store, self._on_skip = store, on_skip
        self._skipped = store.faults_skipped()
        self._first, self._digests = self.last + 1, list[bytes]()  # fingerprints that are not written yet
        self._joined: list[bool] = []  # of the events of this turn
        self._notes: dict[str, str] = {}  # facts that are not written yet
        self._samples: list[KeepSamples] = []  # that are not written yet
        self._corrections: dict[TrajectoryId, Corrections] = {}  # of the newest step, to go with them
        self._doomed = deque[tuple[int, int]]()  # groups that are dropped, each with the event that did it
        self._passed = inf if store.path == ":memory:" else 0  # up to here nothing is ever undone

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

        None if the core fails on one of them, or on what it decides because of them: then it is as before
        them, and they are apart.
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
        """Nobody will ask for the payload of these groups again, unless the run goes back to before now."""
        self._doomed.extend((self.last, group) for group in groups)

    def passed(self, number: int) -> None:
        """The core after this event keeps its invariants, so the run never goes back to before it."""
        self._passed = max(number, self._passed)

    def note(self, name: str, value: str) -> None:
        """A fact about the run, to be written with the next turn; the last of a name counts."""
        self._notes[name] = value

    def write_rest(self) -> None:
        """What the last turn came to; inside a transaction, which never fails without ending the run."""
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
        """Copy them before their payload goes. A run goes on without: it trains on the payload itself."""
        samples, self._samples = self._samples, []
        corrections, self._corrections = self._corrections, {}
        if self._store.path == ":memory:":  # nobody could read them
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
        """Keep what came with an event; returns it, or the fault of a worker that foretells its orders.

        `came`: the peers that have attached in this turn; one that attaches is added.
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
        """Whether the core wants what came with a message, and why the message is a lie if not."""
        try:
            is_wanted = self.core.keeps_payload(event.peer, event.message)
            return is_wanted, None if is_wanted else self.core.foretelling(event.peer, event.message)
        except Exception:  # the core fails on the event itself as well, and then it is passed over
            log.exception("The core failed to look at a word of %s.", event.peer)
            return False, None

    def _pass_over(self, number: int, more: list[int], reason: str) -> None:
        """Say in the journal that event `number` does not count, and go back to before it.

        Nor does what its author says behind it in this turn.
        """
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
    """Which of the events of a turn are decided upon with the next one."""
    *earlier, _ = [isinstance(event, Received) and isinstance(event.message, REPORTS) for event in events]
    return [*earlier, False]


def _author(event: Event) -> str | None:
    return event.peer if isinstance(event, Received) else None
