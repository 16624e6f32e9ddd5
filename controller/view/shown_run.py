"""One run that is shown: its journal, its core at any moment, its samples and metrics.

Invariants: the run is only read, and by one thread at a time; a run that goes on is followed to its newest
event when somebody looks; of two replicas one stays at the newest event, so that who looks back does not send
those who look at now through the history again; who has no patience is told how far the reading is, and each
time that they ask again it goes on.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from controller.core.run_alarms import alarms_of
from controller.durability.holder import controller_of
from controller.durability.image.classes import InParts
from controller.durability.recording import Recording
from controller.history.given_orders import orders
from controller.history.story import Beginning
from controller.history.why import why
from controller.view.held import held_by
from controller.view.pace_of_steps import pace_of
from controller.view.past.background import Background
from controller.view.past.kept_past import LEAST_EVENTS, KeptPast, find_past, keep_past
from controller.view.past.life import as_json, life_of
from controller.view.past.newest import NewestCore
from controller.view.past.pursuit import IsLate, Pursuit, late_after
from controller.view.past.replica import Instant, Replica, StillReading, moment_of
from controller.view.past.timeline import Timeline
from controller.view.past.timeline_picture import picture
from controller.view.pictures import event_of, figures_of, group_of, ledger_of, now_of, recent_of, workers_of
from controller.view.shown_samples import ShownSamples
from controller.view.written import Written, by_source, columns_of, not_heard, quiet_s, said_in

Json = dict[str, Any]
Found = TypeVar("Found")
Place = tuple[Replica, Instant]
MOST_AT_ONCE_S = 1.0  # of reading, before others get their answers
MOST_ORDERS = 200  # that are told
NO_STEP = 1 << 53  # every step is before it


class ShownRun:
    """A run directory, or a copy of one, or its run.db."""

    def __init__(self, run: str | Path, *, keyframes_bytes: int | None = None) -> None:
        """Nothing is read before somebody looks; `keyframes_bytes`: default what the run's settings say."""
        path = Path(run)
        self.path = path if path.is_dir() else path.parent
        self._given = path
        self._lock = Lock()
        self.name = self.path.resolve().name
        self._newest = NewestCore(self.path, is_live=lambda: self.state() == "live")
        self._pursuit = Pursuit(self._read_on)
        self._past: Replica | None = None
        self._keyframes_bytes = keyframes_bytes
        self._recording: Recording | None = None
        self._background: Background | None = None
        self._written, self._samples = Written(self.path), ShownSamples()
        self._saved = 0  # the event up to which the pass is kept beside the run
        self._lives: dict[int, Json] = {}  # of groups that have left, by number
        self._orders: tuple[int, list[Json]] = 0, []  # up to which event they were looked for

    # -- what it is -----------------------------------------------------------------------------------

    def facts(self) -> Json:
        """What the run is, without stepping through anything.

        Raises: RunError if this release cannot read it.
        """
        recording = self._look()
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
        """`live`, `over`, or `gone`: its controller ended without a word."""
        if (self.path / "summary.json").exists():
            return "over"
        return "live" if controller_of(self.path) is not None else "gone"

    # -- its core at a moment -------------------------------------------------------------------------

    def moment(self, at: dict[str, str], seek: str = "", *, patience_s: float = inf) -> Json:
        """Where it stands at a moment, and the event that brought it there.

        `seek`: `next` or `last` for the nearest event behind or before that gave commands; `patience_s`: of
        reading, here and of every page: beyond it StillReading is raised.
        """

        def show(replica: Replica, instant: Instant) -> Json:
            find = {"next": replica.decision_after, "last": replica.decision_before}
            return self._place(replica, find.get(seek, replica.with_turn)(instant.number))

        return self._with(at, show, patience_s)

    def why(self, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """The page Why: what the strategies were asked at an event, and why they answered as they did."""

        def show(replica: Replica, instant: Instant) -> Json:
            instant = replica.with_turn(instant.number)
            found = self._place(replica, instant)
            if instant.turn is None:
                return found | {"decisions": []}
            recorded = instant.turn.recorded
            replica.at(recorded.number - 1)
            core = replica.copy()
            decisions = why(
                core, lambda core: core.step(recorded.now, recorded.event, decides=not recorded.is_joined)
            )
            return found | {"decisions": [asdict(decision) for decision in decisions]}

        return self._with(at or {"event": str(self._look().last)}, show, patience_s)

    def now(
        self, at: dict[str, str], *, patience_s: float = inf, find: str | None = None, who: str = ""
    ) -> Json:
        """The page Now; `find`: part of a worker's name for a table as short as a page, None for all.

        `who`: the worker of which it is told what it has in hand.
        """

        def show(replica: Replica, instant: Instant) -> Json:
            instant = replica.with_turn(instant.number)
            core, written = instant.core, self._written
            lines, steps = written.readable("metrics.jsonl"), core.state.steps
            wrong = written.alarms(steps, bound=core.state.config.staleness.max_staleness)
            place = self._place(replica, instant)
            is_present = not at and place["state"] == "live"
            quiet = quiet_s(self.path, time.time()) if is_present else 0.0
            own = written.own.alarms() if is_present else []
            failing = [*own, *(alarm._asdict() for alarm in alarms_of(core))]
            found: Json = {
                "alarms": [*not_heard(quiet), *written.damaged(), *failing, *wrong],
                "controller": written.own.figures() if is_present else {},
                "last_step": figures_of(lines, steps),
                "recent": recent_of(lines, steps),
                "pace": pace_of(lines, steps, core.state.config, cap=core.state.pace.cap),
                "quiet_s": quiet,
            }
            if not instant.number:  # it has not been told that the run begins, so nothing is amiss
                found["idle_because"] = ""
            found["held"] = held_by(core, who) if who else None
            shown = place | now_of(core) | found
            return shown if find is None else shown | workers_of(shown["workers"], find)

        return self._with(at, show, patience_s)

    def ledger(self, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """The page Ledger."""

        def show(replica: Replica, instant: Instant) -> Json:
            instant = replica.with_turn(instant.number)
            return self._place(replica, instant) | ledger_of(instant.core)

        return self._with(at, show, patience_s)

    def group(self, number: int, at: dict[str, str], *, patience_s: float = inf) -> Json:
        """A group as it stands at a moment, and its whole life. Raises: RunError if nothing names it."""

        def show(replica: Replica, instant: Instant) -> Json:
            return {"standing": group_of(instant.core, number)}

        standing = self._with(at, show, patience_s)
        with self._answering():
            recording = self._look()
            life = self._lives.get(number)
            if life is None:
                life = as_json(life_of(recording, number, self._beginning(recording, number)))
                if self.state() != "live":
                    self._lives[number] = life
            kept = [key for key in recording.sample_keys() if key[1] == number]
        return {**standing, "life": life, "samples": kept}

    def timeline(self, begin_s: float | None, end_s: float | None, wanted: str) -> Json:
        """The page Timeline, as far as the pass over the history has come; default the whole run."""
        with self.history() as (timeline, progress):
            until_s = progress["until_s"] if end_s is None else end_s
            return picture(timeline, begin_s or 0.0, until_s, wanted=wanted) | progress

    @contextmanager
    def history(self) -> Iterator[tuple[Timeline, Json]]:
        """What the pass over the history knows, which stands still meanwhile; and how far it is."""
        with self._answering():
            recording = self._look()
            background = self._follow(recording)
        with background.lock:
            yield background.timeline, {"until_s": recording.until_s} | self._progress(recording)

    @contextmanager
    def replica(self) -> Iterator[Replica]:
        """The core that goes back and forth, for whoever looks at it alone."""
        with self._answering():
            past = self._replica_of_past(self._look())
            yield past

    def join(self) -> None:
        """Wait until the pass over the history is at its end."""
        if self._background is not None:
            self._background.join()

    def _place(self, replica: Replica, instant: Instant) -> Json:
        """Which moment is shown, and of how long a run."""
        return {
            "number": instant.number,
            "now_s": instant.now,
            "first": replica.first,
            "last": replica.last,
            "until_s": replica.recording.until_s,
            "state": self.state(),
            "event": event_of(instant.core, instant.turn),
        }

    # -- what it wrote --------------------------------------------------------------------------------

    def samples(self) -> Json:
        """The keys of all kept samples with what a list shows of them."""
        with self._lock:
            return self._samples.kept(self._look())

    def find_samples(self, words: Mapping[str, str]) -> Json:
        """A page of the responses that words of an address ask for; how much there is still to be read."""
        with self._lock:
            return self._samples.find(self._look(), words)

    def sample(self, step: int, group: int) -> Json:
        """One kept group. Raises: RunError if it is not kept."""
        with self._lock:
            return self._samples.one(self._look(), step, group)

    def metrics(self) -> Json:
        """metrics.jsonl and evaluations.jsonl as columns."""
        return {
            "steps": columns_of(self._written.lines("metrics.jsonl")),
            "evaluations": columns_of([by_source(line) for line in self._written.lines("evaluations.jsonl")]),
        }

    def orders(self) -> Json:
        """What operators have asked of the run, the newest first."""
        with self._lock:
            recording, (until, known) = self._look(), self._orders
            new = orders(recording, max(until, recording.pruned))
            known = [*(order._asdict() for order in reversed(new)), *known][:MOST_ORDERS]
            self._orders = recording.last, known
        return {"orders": known}

    def said(self) -> Json:
        """What the run's own files say of where it stands, without its journal."""
        return said_in(self.path) | {
            "last_step": figures_of(self._written.readable("metrics.jsonl"), NO_STEP)
        }

    # -- the replicas ---------------------------------------------------------------------------------

    def _look(self) -> Recording:
        """The journal as it is now; one that cannot grow is not read again."""
        if self._recording is None or self.state() == "live":
            self._recording = Recording(self._given)
        return self._recording

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """One answer at a time, for which the pass over the history steps aside."""
        background = self._background
        with background.answering() if background else nullcontext(), self._lock:
            yield

    def _follow(self, recording: Recording) -> Background:
        """The pass over the history, told to go on."""
        background = self._pass_of(recording)
        background.follow(recording)
        return background

    def _pass_of(self, recording: Recording) -> Background:
        """The pass over the history, with what an earlier view kept of it."""
        if self._background is None:
            known = find_past(self.path, recording)
            self._background = Background(recording, keep=self._offer, known=known, on_end=self._keep_past)
            if known is not None:
                self._saved = known.number
                self._replica_of_past(recording).keyframes.take_over(known.keyframes)
        return self._background

    def _offer(self, number: int, image: InParts) -> int:
        with self._lock:
            return self._replica_of_past(self._look()).offer(number, image)

    def _keep_past(self, background: Background, recording: Recording) -> None:
        """Let the next view of this run begin where the pass stands now."""
        number = background.number
        if number - self._saved < LEAST_EVENTS or (image := background.image()) is None:
            return
        with self._lock:
            keyframes = self._replica_of_past(recording).keyframes.as_plain()
        self._saved, known = number, background.timeline.as_plain()
        keep_past(self.path, recording, KeptPast(number, image, known, keyframes))

    def _progress(self, recording: Recording) -> Json:
        """How far the pass over the history is."""
        background = self._background
        if background is None:
            return {"passed": 0, "of": recording.last, "trouble": ""}
        return {"passed": background.number, "of": recording.last, "trouble": background.trouble}

    def _beginning(self, recording: Recording, group: int) -> Beginning | None:
        """A moment just before the group, if the pass over the history has come by there."""
        if self._background is None:
            return None
        with self._background.lock:
            timeline = self._background.timeline
            number, names = timeline.before(group), dict(timeline.names)
            until = timeline.last_word(group) if self._background.number >= recording.last else None
        if number is None:
            return None
        past = self._replica_of_past(recording)
        past.read_on(recording)
        instant = past.at(number)
        core = past.copy()
        return Beginning(core, instant.number, names, until)

    def _replica_of_past(self, recording: Recording) -> Replica:
        if self._past is None:
            room = self._keyframes_bytes or recording.config().view.keyframes_mb << 20
            self._past = Replica(recording, keyframes_bytes=room)
        return self._past

    def _with(
        self, at: dict[str, str], show: Callable[[Replica, Instant], Found], patience_s: float
    ) -> Found:
        """What `show` makes of the core at a moment: `event`, `second` or `step`, else the newest.

        Raises: StillReading if the core is not there after `patience_s`, and nearer than before; at the
        newest it need only be near, once it was there.
        """
        if not at and patience_s < inf and not self._pursuit.has_begun(patience_s):
            recording = self._look()
            raise StillReading(recording.pruned, recording.last)
        while True:
            try:
                with self._answering():
                    recording, is_late = self._look(), late_after(min(patience_s, MOST_AT_ONCE_S))
                    if at:
                        place = self._go_back(recording, at, is_late)
                    else:
                        place = self._go_to_newest(recording, is_late, may_be_behind=patience_s < inf)
                    return show(*place)
            except StillReading:
                if patience_s < inf:
                    raise

    def _go_to_newest(self, recording: Recording, is_late: IsLate, *, may_be_behind: bool) -> Place:
        began = time.monotonic()
        try:
            return self._newest.go(recording, is_late)
        except StillReading:
            near = self._newest.near(recording) if may_be_behind else None
            if near is None:
                raise
            return near
        finally:
            self._pursuit.looked(time.monotonic() - began)

    def _read_on(self, is_late: IsLate) -> None:
        """For nobody who waits: the journal is looked at again when all that was known of it is read."""
        with self._answering():
            if (known := self._recording) is None or self._newest.is_at_end(known):
                known = self._look()
            self._newest.go(known, is_late)

    def _go_back(self, recording: Recording, at: dict[str, str], is_late: IsLate) -> Place:
        self._pass_of(recording)
        past = self._replica_of_past(recording)
        past.read_on(recording)
        try:
            with past.hurrying(is_late):
                return past, moment_of(past, self._known_event(at))
        finally:
            self._follow(recording)

    def _known_event(self, at: dict[str, str]) -> dict[str, str]:
        """The event of a train step in place of its number, if the pass over the history has met it."""
        step = at.get("step", "")
        if "event" in at or self._background is None or not step.isascii() or not step.isdecimal():
            return at
        with self._background.lock:
            number = self._background.timeline.event_of_step(int(step))
        return at if number is None else {"event": str(number)}
