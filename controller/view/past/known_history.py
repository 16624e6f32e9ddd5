"""A view's knowledge of one history of a run: cores, the pass over it, lives, orders and samples.

Invariants: all of it is of one history, and goes with it: a journal that tells another one has another of
these; the replayed cores are used by one thread at a time, which holds the lock of the run; where a compact
run has deleted what would be read next, the pass begins anew at the first event that is kept.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from controller.core.core import Core
from controller.durability.image.classes import InParts
from controller.durability.recording import Recording
from controller.history.given_orders import orders
from controller.history.shortened import deleted_in_words
from controller.history.story import Beginning
from controller.view.past.background import Background
from controller.view.past.kept_past import LEAST_EVENTS, KeptPast, find_past, keep_past
from controller.view.past.lives import Lives
from controller.view.past.newest import NewestCore
from controller.view.past.pursuit import IsLate, Pursuit
from controller.view.past.replayed_core import Instant, ReplayedCore, StillReading, moment_of
from controller.view.shown_samples import ShownSamples
from protocol.errors import RunError

MOST_ORDERS = 200  # that are told
MOST_DIGITS = 15  # of a step: no run has more
Json = dict[str, Any]


class KnownHistory:
    """Of one run, as long as its journal goes on with the same history."""

    def __init__(
        self,
        run: Path,
        recording: Recording,
        *,
        pursuit: Pursuit,
        lock: Lock,
        is_live: Callable[[], bool],
        is_current: "Callable[[KnownHistory], bool]",
        keyframes_bytes: int | None = None,
    ) -> None:
        """Nothing is stepped through before somebody looks.

        `lock`: of the run, held by who calls; `is_current(self)` looks whether the journal still tells this
        history; `keyframes_bytes`: default what the run's settings say.
        """
        self.recording = recording
        """The journal at the last look."""
        self.newest, self.pursuit = NewestCore(run, is_live=is_live), pursuit
        self.lives, self.samples = Lives(), ShownSamples()
        self.background: Background | None = None
        """The pass over the history, once somebody has asked for something of it."""
        self._run, self._lock, self._is_current = run, lock, is_current
        self._keyframes_bytes = keyframes_bytes
        self._past: ReplayedCore | None = None
        self._saved = 0  # the event up to which the pass is kept beside the run
        self._orders: tuple[int, list[Json]] = 0, []  # up to which event they were looked for
        self._is_over = False

    def close(self) -> None:
        """The journal tells another history: what goes on for this one ends."""
        self._is_over = True
        if self.background is not None:
            self.background.stop()

    def past(self, recording: Recording) -> ReplayedCore:
        """The core that goes back and forth."""
        if self._past is None:
            room = self._keyframes_bytes or recording.config().view.keyframes_mb << 20
            self._past = ReplayedCore(recording, keyframes_bytes=room)
        self._past.read_on(recording)
        return self._past

    def go_back(
        self, recording: Recording, at: dict[str, str], is_late: IsLate
    ) -> tuple[ReplayedCore, Instant]:
        """The core at a moment.

        Raises: StillReading where `is_late()`; RunError if it is no moment, or a step that is to come, or
        one whose events are deleted.
        """
        self._pass_of(recording)
        past = self.past(recording)
        if "step" in at and self.newest.near(recording) is not None:  # few events say whether it is to come
            with suppress(StillReading):
                _refuse_step_to_come(at, self.newest.go(recording, is_late)[1].core)
        try:
            with past.hurrying(is_late):
                instant = moment_of(past, self._known_event(at))
                _refuse_step_to_come(at, instant.core)
                _refuse_deleted_step(at, past, instant)
                return past, instant
        finally:
            self.follow(recording)

    def follow(self, recording: Recording) -> Background:
        """The pass over the history, told to go on."""
        background = self._pass_of(recording)
        if not self._is_over:
            background.follow(recording)
        return background

    def progress(self, recording: Recording) -> Json:
        """How far the pass over the history is."""
        background = self.background
        if background is None:
            return {"passed": 0, "of": recording.last, "trouble": ""}
        return {"passed": background.number, "of": recording.last, "trouble": background.trouble}

    def beginning(self, recording: Recording, group: int) -> Beginning | None:
        """A moment just before the group, if the pass over the history has come by there."""
        if self.background is None:
            return None
        with self.background.lock:
            timeline = self.background.timeline
            number, names = timeline.before(group), dict(timeline.names)
            until = timeline.last_word(group) if self.background.number >= recording.last else None
        if number is None or number < recording.pruned:
            return None
        past = self.past(recording)
        instant = past.at(number)
        return Beginning(past.copy(), instant.number, names, until)

    def orders(self, recording: Recording) -> list[Json]:
        """What operators have asked of the run, the newest first. Raises: RunError."""
        until, known = self._orders
        new = orders(recording, max(until, recording.pruned))
        known = [*(order._asdict() for order in reversed(new)), *known][:MOST_ORDERS]
        self._orders = recording.last, known
        return known

    def _pass_of(self, recording: Recording) -> Background:
        """The pass over the history, with what an earlier view kept of it."""
        found = self.background
        if found is not None and found.number >= recording.pruned:
            return found
        if found is not None:
            found.stop()
        known = find_past(self._run, recording)
        found = Background(recording, keep=self._offer, known=known, on_end=self._keep_past)
        if known is not None:
            self.past(recording).keyframes.take_over(known.keyframes)
        self.background, self._saved = found, known.number if known is not None else 0
        return found

    def _offer(self, number: int, image: InParts) -> int:
        with self._lock:
            return self.past(self.recording).offer(number, image)

    def _keep_past(self, background: Background, recording: Recording) -> None:
        """Let the next view of this run begin where the pass stands now."""
        number = background.number
        if number - self._saved < LEAST_EVENTS or (image := background.image()) is None:
            return
        with self._lock:
            if not self._is_current(self) or background is not self.background:
                return
            keyframes = self.past(recording).keyframes.as_plain()
        self._saved, known = number, background.timeline.as_plain()
        keep_past(self._run, recording, KeptPast(number, image, known, keyframes))

    def _known_event(self, at: dict[str, str]) -> dict[str, str]:
        """The event of a train step in place of its number, if the pass over the history has met it."""
        if self.background is None or (step := _step_of(at)) is None:
            return at
        with self.background.lock:
            number = self.background.timeline.event_of_step(step)
        return at if number is None else {"event": str(number)}


def _refuse_step_to_come(at: dict[str, str], core: Core) -> None:
    """Raises: RunError if a step is asked for that the run, whose newest core this is, has not finished."""
    step, done = _step_of(at), core.state.steps
    if step is not None and step > done:
        raise RunError(
            f"The run has {done} steps, so there is no step {step}: expected one from 0 to {done}."
        )


def _refuse_deleted_step(at: dict[str, str], past: ReplayedCore, found: Instant) -> None:
    """Raises: RunError if what was found for a step is a later one, the first that is kept."""
    step, kept = _step_of(at), found.core.state.steps
    if step is not None and step < kept:
        raise RunError(
            f"There is no moment of step {step} any more. {deleted_in_words(past.recording)} "
            f"Expected a step from {kept} on."
        )


def _step_of(at: dict[str, str]) -> int | None:
    """The train step that is asked for; None if another moment is, or what is no step."""
    step = at.get("step", "")
    is_step = "event" not in at and step.isdecimal() and len(step) <= MOST_DIGITS
    return int(step) if is_step else None
