"""A pass over a run's whole history in the background: lanes of workers, and keyframes for jumps.

Invariants: it steps a core of its own, so nobody waits for it; while somebody is answered it pauses, so that
an answer does not share its processor; it ends at the newest event that is known, and goes on from there;
keyframes take at most about half of its time, however large the core is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread
from time import thread_time

from controller.durability.image.classes import InParts
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import Thawer
from controller.durability.recording import Recording
from controller.durability.replay import CoreFailed, turns
from controller.view.past.kept_past import KeptPast
from controller.view.past.timeline import Timeline
from protocol.errors import LocalError, StaleFlowError

AT_ONCE = 100  # events between two looks whether somebody is being answered
SPACING = 500  # events between two keyframes

Keyframe = Callable[[int, InParts], int]
"""`keep(number, image)` takes an image after an event, and says after how many events the next is wanted."""


class Background:
    """The pass over one run."""

    def __init__(
        self,
        recording: Recording,
        *,
        keep: Keyframe,
        known: KeptPast | None = None,
        on_end: "Callable[[Background, Recording], None]" = lambda background, recording: None,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        """`known`: where an earlier pass had come to; `on_end` hears when it is at its end.

        `clock`: seconds that the thread of the pass has worked.

        Raises: RunError or ConfigError if this release cannot read the run.
        """
        self.number: int
        """The last event that it has stepped through."""
        self._freezer = Freezer()
        self._keep, self._on_end, self._clock = keep, on_end, clock
        if known is None:
            self._core, self._spacing, self.number = recording.make_core(), SPACING, recording.pruned
            self.timeline = Timeline(self._core)
        else:
            self._core = Thawer(recording.strategies()).thaw(known.image)
            self._spacing = known.keyframes[0]
            self.number, self.timeline = known.number, Timeline.of_plain(known.timeline, self._core)
        self._kept = self.number
        self._stepped_s, self._image_s = 0.0, 0.0  # since the last keyframe; what that one took
        self.lock = Lock()
        """Held while the timeline changes."""
        self.trouble = ""
        """Why it goes no further with the journal as it was looked at last; "" while it can."""
        self._stood_at: Recording | None = None  # the look at the journal that it had trouble with
        self._is_stopped = False
        self._answering, self._quiet = 0, Condition()
        self._thread: Thread | None = None

    def follow(self, recording: Recording) -> None:
        """Go on to the newest event of this recording, in a thread; nothing if one is at it.

        What could not be read is tried again once somebody has looked at the journal anew.
        """
        if self.number >= recording.last or (self._thread and self._thread.is_alive()):
            return
        if self._is_stopped or recording is self._stood_at:
            return
        self.trouble = ""
        self._thread = Thread(target=self._run, args=(recording,), name="history", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Go no further, whatever there is to read: its history is not that of the run any more."""
        self._is_stopped = True

    def join(self, within_s: float | None = None) -> bool:
        """Wait until it has reached what it was last told of; returns whether it has, in time."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._thread is None or not self._thread.is_alive()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let it pause meanwhile."""
        with self._quiet:
            self._answering += 1
        try:
            yield
        finally:
            with self._quiet:
                self._answering -= 1
                self._quiet.notify_all()

    def _run(self, recording: Recording) -> None:
        try:
            while self.number < recording.last and not self._is_stopped:
                with self._quiet:
                    self._quiet.wait_for(lambda: not self._answering)
                self._step(recording, min(self.number + min(AT_ONCE, self._spacing), recording.last))
            if not self._is_stopped:
                self._on_end(self, recording)
        except CoreFailed as error:  # it stands in the middle of an event
            self.trouble, self._is_stopped = str(error), True
        except StaleFlowError as error:
            self.trouble, self._stood_at = str(error), recording

    def _step(self, recording: Recording, until: int) -> None:
        began = self._clock()
        with self.lock:
            for turn in turns(recording, self._core, self.number, until):
                self.timeline.take(turn, self._core)
                self.number = turn.recorded.number
            self.number = until  # the last ones may count as never heard
        self._stepped_s += self._clock() - began
        if self.number - self._kept >= self._spacing and self._stepped_s >= self._image_s:
            self._make_keyframe(recording)

    def _make_keyframe(self, recording: Recording) -> None:
        began = self._clock()
        self._kept, image = self.number, self.image()
        self._spacing = recording.last + 1 if image is None else self._keep(self.number, image)
        self._stepped_s, self._image_s = 0.0, self._clock() - began

    def image(self) -> InParts | None:
        """Of the core where it stands; None if a strategy of the user's holds what no image can."""
        try:
            return self._freezer.freeze_in_parts(self._core)
        except LocalError:
            return None
