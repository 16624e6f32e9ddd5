"""One run that is shown: its journal, its core at any moment, its samples and metrics.

Invariants: the run is only read, and its cores are stepped by one thread at a time, but for the lives of
groups, which are read beside all else; a run is followed to its newest event when somebody looks, and what
was found out of one history is never shown for another (`followed_journal.py`); of two replayed cores one
stays at the newest event, so that who looks back does not send those who look at now through the history
again; who has no patience is told how far the reading is, and each time that they ask again it goes on.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from controller.core.run_alarms import alarms_of
from controller.core.state.views.admission import batches_in_flight
from controller.durability.holder import controller_of
from controller.durability.recording import Recording
from controller.history.story import Beginning
from controller.history.why import why
from controller.view.followed_journal import FollowedJournal
from controller.view.held import held_by
from controller.view.pace_of_steps import pace_of
from controller.view.past.known_history import KnownHistory
from controller.view.past.pursuit import IsLate, Pursuit, late_after
from controller.view.past.replayed_core import Instant, ReplayedCore, StillReading
from controller.view.past.timeline import Timeline
from controller.view.past.timeline_picture import picture
from controller.view.pictures import event_of, figures_of, group_of, ledger_of, now_of, recent_of, workers_of
from controller.view.written import (
    METRICS,
    Written,
    by_source,
    columns_of,
    newest_of,
    not_heard,
    quiet_s,
    said_in,
)
from protocol.errors import RunError
from protocol.files import exists

Json = dict[str, Any]
Found = TypeVar("Found")
Place = tuple[ReplayedCore, Instant]
MOST_AT_ONCE_S = 1.0  # of reading, before others get their answers
NO_STEP = 1 << 53  # every step is before it
PAUSE_S = 0.01  # between two parts of a reading for who waits for its end


class ShownRun:
    """A run directory, or a copy of one, or its run.db."""

    def __init__(self, run: str | Path, *, keyframes_bytes: int | None = None) -> None:
        """Nothing is read before somebody looks; `keyframes_bytes`: default what the run's settings say."""
        path = Path(run)
        self.path = path.parent if os.path.isfile(path) else path  # a closed folder is neither
        self._lock = Lock()
        self.name = self.path.resolve().name.encode(errors="backslashreplace").decode()
        self._keyframes_bytes = keyframes_bytes
        self._journal = FollowedJournal(path, is_live=lambda: self.state() == "live")
        self._looking = Lock()  # held for moments only
        self._known: KnownHistory | None = None
        self._written = Written(self.path)

    # -- what it is -----------------------------------------------------------------------------------

    def facts(self) -> Json:
        """Facts on the run, without any replay.

        Raises: RunError if this release cannot read it.
        """
        recording = self._look().recording
        return {
            "name": self.name,
            "path": str(self.path),
            "state": self.state(),
            "first": recording.pruned,
            "last": recording.last,
            "until_s": recording.until_s,
            "other_release": recording.other_release(),
            "config": recording.config().model_dump(mode="json"),
        }

    def state(self) -> str:
        """`live`, `over`, or `gone` if its controller ended without a summary."""
        if os.path.exists(self.path / "summary.json"):  # not in a folder that the user may not enter
            return "over"
        return "live" if controller_of(self.path) is not None else "gone"

    # -- its core at a moment -------------------------------------------------------------------------

    def moment(self, at: dict[str, str], seek: str = "", *, patience_s: float = inf) -> Json:
        """Where it stands at a moment, and the event that brought it there.

        `seek`: `next` or `last` for the nearest event behind or before that gave commands; `patience_s`: of
        reading, here and of every page: beyond it StillReading is raised.
        """

        def show(replayed: ReplayedCore, instant: Instant) -> Json:
            find = {"next": replayed.decision_after, "last": replayed.decision_before}.get(seek)
            number = instant.number
            found = find(number, late(patience_s)) if find else replayed.with_turn(number)
            return self._place(replayed, found)

        return self._with(at, show, patience_s)

    def why(self, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """The page Why: what the strategies were asked at an event, and why they answered as they did."""

        def show(replayed: ReplayedCore, instant: Instant) -> Json:
            instant = replayed.with_turn(instant.number)
            found = self._place(replayed, instant)
            if instant.turn is None:
                return found | {"decisions": []}
            recorded = instant.turn.recorded
            replayed.at(recorded.number - 1)
            core = replayed.copy()
            decisions = why(
                core, lambda core: core.step(recorded.now, recorded.event, decides=not recorded.is_joined)
            )
            return found | {"decisions": [asdict(decision) for decision in decisions]}

        return self._with(at or {"event": str(self._look().recording.last)}, show, patience_s)

    def now(
        self, at: dict[str, str], *, patience_s: float = inf, find: str | None = None, who: str = ""
    ) -> Json:
        """The page Now; `find`: part of a worker's name for a table as short as a page, None for all.

        `who`: the worker of which it is told what it has in hand.
        """

        def show(replayed: ReplayedCore, instant: Instant) -> Json:
            instant = replayed.with_turn(instant.number)
            core, written = instant.core, self._written
            lines, steps = written.readable(METRICS), core.state.steps
            wrong = written.alarms(steps, bound=core.state.config.staleness.max_staleness)
            place = self._place(replayed, instant)
            is_present = not at and place["state"] == "live"
            quiet = quiet_s(self.path, time.time()) if is_present else 0.0
            own = written.own.alarms() if is_present else []
            failing = [*own, *(alarm._asdict() for alarm in alarms_of(core))]
            found: Json = {
                "alarms": [*not_heard(quiet), *written.damaged(), *failing, *wrong],
                "controller": written.own.figures() if is_present else {},
                "last_step": figures_of(lines, steps),
                "recent": recent_of(lines, steps),
                "pace": pace_of(lines, steps, core.state.config, cap=batches_in_flight(core.state)),
                "quiet_s": quiet,
            }
            if not instant.number:  # it has not been told that the run begins, so nothing is amiss
                found["idle_because"] = ""
            found["held"] = held_by(core, who) if who else None
            shown = place | now_of(core) | found
            return shown if find is None else shown | workers_of(shown["workers"], find)

        self._read_lines(patience_s)
        return self._with(at, show, patience_s)

    def ledger(self, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """The page Ledger."""

        def show(replayed: ReplayedCore, instant: Instant) -> Json:
            instant = replayed.with_turn(instant.number)
            return self._place(replayed, instant) | ledger_of(instant.core)

        return self._with(at, show, patience_s)

    def group(self, number: int, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """A group as it stands at a moment, and its whole life. Raises: RunError if nothing names it."""

        def show(replayed: ReplayedCore, instant: Instant) -> Json:
            return {"standing": group_of(instant.core, number)}

        standing = self._with(at, show, patience_s)
        life = self._life(number, patience_s)
        kept = [key for key in self._look().recording.sample_keys() if key[1] == number]
        return {**standing, "life": life, "samples": kept}

    def _life(self, group: int, patience_s: float) -> Json:
        """Read while others are answered; the pass over the history steps aside."""
        while True:
            known = self._look()
            recording = known.recording

            def begin(known: KnownHistory = known, recording: Recording = recording) -> Beginning | None:
                with self._lock:
                    return known.beginning(recording, group)

            try:
                with self._ahead_of_the_pass():
                    return known.lives.find(recording, group, begin, lambda: late(patience_s))
            except StillReading:
                if patience_s < inf:
                    raise
                time.sleep(PAUSE_S)  # others may have to be read before this one

    def timeline(self, begin_s: float | None, end_s: float | None, wanted: str) -> Json:
        """The page Timeline, as far as the pass over the history has come; default the whole run."""
        with self.history() as (timeline, progress):
            until_s = progress["until_s"] if end_s is None else end_s
            return picture(timeline, begin_s or 0.0, until_s, wanted=wanted) | progress

    @contextmanager
    def history(self) -> Iterator[tuple[Timeline, Json]]:
        """What the pass over the history knows, which stands still meanwhile; and how far it is."""
        with self._answering():
            known = self._look()
            recording = known.recording
            background = known.follow(recording)
        with background.lock:
            yield background.timeline, {"until_s": recording.until_s} | known.progress(recording)

    @contextmanager
    def replayed(self) -> Iterator[ReplayedCore]:
        """The core that goes back and forth, for whoever looks at it alone."""
        with self._answering():
            known = self._look()
            yield known.past(known.recording)

    def join(self, within_s: float | None = None) -> bool:
        """Wait until the pass over the history is at its end; returns whether it is, in time."""
        background = self._known.background if self._known is not None else None
        return background is None or background.join(within_s)

    def _place(self, replayed: ReplayedCore, instant: Instant) -> Json:
        """Which moment is shown, and of how long a run."""
        return {
            "number": instant.number,
            "now_s": instant.now,
            "first": replayed.first,
            "last": replayed.last,
            "until_s": replayed.recording.until_s,
            "state": self.state(),
            "steps": instant.core.state.steps,
            "event": event_of(instant.core, instant.turn),
        }

    # -- what it wrote --------------------------------------------------------------------------------

    def samples(self) -> Json:
        """The keys of all kept samples with what a list shows of them."""
        with self._lock:
            known = self._look()
            return known.samples.kept(known.recording)

    def find_samples(self, words: Mapping[str, str]) -> Json:
        """A page of the responses that words of an address ask for; how much there is still to be read."""
        with self._lock:
            known = self._look()
            return known.samples.find(known.recording, words)

    def sample(self, step: int, group: int) -> Json:
        """One kept group. Raises: RunError if it is not kept."""
        with self._lock:
            known = self._look()
            return known.samples.one(known.recording, step, group)

    def metrics(self) -> Json:
        """metrics.jsonl and evaluations.jsonl as columns. Raises: RunError if metrics.jsonl is not there."""
        lines = self._written.lines(METRICS)
        if not exists(self.path / METRICS):
            raise RunError(
                f"There is no {METRICS} in {self.path}, and a run has one from its beginning on. Was the "
                f"directory moved or deleted, or run.db copied alone? {METRICS} beside it has the curves."
            )
        return {
            "steps": columns_of(lines),
            "evaluations": columns_of([by_source(line) for line in self._written.lines("evaluations.jsonl")]),
        }

    def orders(self) -> Json:
        """What operators have asked of the run, the newest first."""
        with self._lock:
            known = self._look()
            return {"orders": known.orders(known.recording)}

    def said(self) -> Json:
        """What the run's own files say of where it stands, without its journal."""
        return said_in(self.path) | {"last_step": figures_of([newest_of(self.path / METRICS)], NO_STEP)}

    def _read_lines(self, patience_s: float) -> None:
        """Those of a run of weeks take seconds. Raises: StillReading if that is not done in `patience_s`."""
        if patience_s < inf and (way := self._written.way(late(patience_s))):
            name, read, size = way
            raise StillReading(read, size, name)

    # -- the journal ----------------------------------------------------------------------------------

    def _look(self) -> KnownHistory:
        """What is known of the history that the journal tells now, with the journal as it is now."""
        with self._looking:
            recording, goes_on = self._journal.look()
            if self._known is not None and not goes_on:
                self._known.close()
            if self._known is None or not goes_on:
                self._known = KnownHistory(
                    self.path, recording, pursuit=Pursuit(self._read_on), lock=self._lock,
                    is_live=lambda: self.state() == "live", is_current=lambda known: self._look() is known,
                    keyframes_bytes=self._keyframes_bytes,
                )  # fmt: skip
            self._known.recording = recording
            self._known.lives.forget()
            return self._known

    @contextmanager
    def _ahead_of_the_pass(self) -> Iterator[None]:
        """The pass over the history steps aside for an answer."""
        background = self._known.background if self._known else None
        with background.answering() if background else nullcontext():
            yield

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """One answer at a time, for which the pass over the history steps aside."""
        with self._ahead_of_the_pass(), self._lock:
            yield

    def _with(
        self, at: dict[str, str], show: Callable[[ReplayedCore, Instant], Found], patience_s: float
    ) -> Found:
        """What `show` makes of the core at a moment: `event`, `second` or `step`, else the newest.

        Raises: StillReading if the core is not there after `patience_s`, and nearer than before; at the
        newest it need only be near, once it was there.
        """
        if not at and patience_s < inf and not (self._known or self._look()).pursuit.has_begun(patience_s):
            recording = self._look().recording
            raise StillReading(recording.pruned, recording.last)
        while True:
            try:
                with self._answering():
                    known, is_late = self._look(), late(patience_s)
                    if at:
                        place = known.go_back(known.recording, at, is_late)
                    else:
                        place = self._go_to_newest(known, is_late, may_be_behind=patience_s < inf)
                    return show(*place)
            except StillReading:
                if patience_s < inf:
                    raise

    def _go_to_newest(self, known: KnownHistory, is_late: IsLate, *, may_be_behind: bool) -> Place:
        began, recording = time.monotonic(), known.recording
        try:
            return known.newest.go(recording, is_late)
        except StillReading:
            near = known.newest.near(recording) if may_be_behind else None
            if near is None:
                raise
            return near
        finally:
            known.pursuit.looked(time.monotonic() - began)

    def _read_on(self, is_late: IsLate) -> None:
        """For nobody who waits: the journal is looked at again when all that was known of it is read."""
        with self._answering():
            if (known := self._known) is None or known.newest.is_at_end(known.recording):
                known = self._look()
            known.newest.go(known.recording, is_late)


def late(patience_s: float) -> IsLate:
    """When a part of the reading ends: before the patience of who asked does, and for the sake of others."""
    return late_after(min(patience_s, MOST_AT_ONCE_S))
