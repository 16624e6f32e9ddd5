"""Time travel over a run's journal: the core as it was after any event.

Invariants: the core is the production core, stepped with the recorded events alone, from the nearest keyframe
before; a keyframe is a snapshot of the run, or an image made on the way (`keyframes.py`); the run is only
read. One thread uses a replayed core.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from controller.core.core import Core
from controller.durability.image.classes import InParts
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import Thawer
from controller.durability.recording import Recorded, Recording
from controller.durability.replay import CoreFailed, Replayed, turns
from controller.view.past.keyframes import FIRST_SPACING, Keyframes
from protocol.errors import LocalError, RunError

NEAR = 32  # events before the target of a far move at which an image is left, for steps back from there
NEVER = 1 << 62  # events: a second of the processor's at 1,024 instances is what an image takes
MOST_NEAR = 4  # such images
BYTES_AN_EVENT = 400  # of a snapshot, which are taken up in the time of one event
KEYFRAMES_BYTES = 256 << 20
NO_STEP = 10**15  # no run has so many


class StillReading(RunError):
    """The core has not reached the moment yet, as time is up; another call goes on from where it is.

    `of`: a file that is being read in its place, of which `number` and `last` are bytes.
    """

    def __init__(self, number: int, last: int, of: str = "") -> None:
        where = f"{of} is read up to byte" if of else "The history is read up to event"
        super().__init__(f"{where} {number} of {last}. Ask again, and it is read on.")
        self.number, self.last, self.of = number, last, of


class Instant(NamedTuple):
    """The position of a replayed core."""

    number: int  # of the last event that the core has seen; `first` before any
    now: float  # seconds since the run began
    core: Core  # to be looked at, and not to be kept: the next move steps or replaces it
    turn: Replayed | None  # that event and the commands that it gave; None at a keyframe, or before the first


class ReplayedCore:
    """The core of one recorded run, movable in time."""

    def __init__(
        self,
        recording: Recording,
        *,
        keyframes_bytes: int = KEYFRAMES_BYTES,
        spacing: int = FIRST_SPACING,
        goes_back: bool = True,
    ) -> None:
        """A replayed core before the first event that is kept.

        `goes_back`: false of one that follows the newest event, and leaves no images on its way.

        Raises: RunError or ConfigError if this release cannot read the run.
        """
        self.recording = recording
        strategies = recording.strategies()
        self._freezer, self._thawer = Freezer(), Thawer(strategies)
        self.keyframes = Keyframes(keyframes_bytes, spacing if goes_back else NEVER)
        """Images in memory, whoever made them."""
        self._goes_back = goes_back
        self._near: dict[int, InParts] = {}  # some more, before where it last went; the newest last
        self._steps: list[int] = []  # events that finished a train step, as far as the history was stepped
        self._known = recording.pruned  # the last event that `_steps` knows of
        self._quiet: dict[tuple[str, int], int] = {}  # how far the newest search has found no commands
        self._unusable: set[int] = set()  # snapshots of the run that another release made, or damaged ones
        core = recording.make_core()
        self._first_steps = core.state.steps
        self._is_late: Callable[[], bool] = lambda: False
        self._at = Instant(recording.pruned, core.state.now, core, None)
        self._behind = recording.pruned  # a keyframe at or before where it stands
        self._keep()

    @property
    def first(self) -> int:
        """The moment before the first event that is kept; 0 but where the journal was shortened."""
        return self.recording.pruned

    @property
    def last(self) -> int:
        """The newest event of the recording."""
        return self.recording.last

    @property
    def here(self) -> Instant:
        """The current position."""
        return self._at

    @contextmanager
    def hurrying(self, is_late: Callable[[], bool]) -> Iterator[None]:
        """Moves in the block raise StillReading after the first event at which `is_late()`."""
        self._is_late = is_late
        try:
            yield
        finally:
            self._is_late = lambda: False

    def at(self, number: int) -> Instant:
        """The moment after this event; the nearest that there is if it is out of range.

        Raises: RunError if the history is damaged there, or the core fails on it.
        """
        number = max(self.first, min(number, self.last))
        here = self._at.number
        is_back, is_deleted = number < here, here < self.first  # the events that would be stepped next
        keyframe = self.nearest(number)
        if is_back or is_deleted or (keyframe > here and self._is_worth_it(keyframe)):
            self._go_to_keyframe(keyframe)
        if self._goes_back and number - self._at.number > 2 * NEAR:
            for turn in self._turns(self._at.number, number - NEAR):
                self._take(turn)
            if (image := self._image()) is not None:
                self._near = dict([*self._near.items()][1 - MOST_NEAR :]) | {self._at.number: image}
        for turn in self._turns(self._at.number, number):
            self._take(turn)
        if number > self._at.number:  # the last ones count as never heard
            self._at = self._at._replace(number=number, turn=None)
        return self._at

    def forward(self, count: int = 1) -> Instant:
        """The moment `count` events later."""
        return self.at(self._at.number + count)

    def back(self, count: int = 1) -> Instant:
        """The moment `count` events earlier."""
        return self.at(self._at.number - count)

    def with_turn(self, number: int) -> Instant:
        """As `at`, and what the event gave is known, but at the first moment."""
        if self._at.number == number and self._at.turn is not None:
            return self._at
        self.at(number - 1)
        return self.at(number)

    def decision_after(self, number: int, is_late: Callable[[], bool] = lambda: False) -> Instant:
        """The next event behind this one that gave commands; the newest if none did.

        Raises: StillReading at the first event at which `is_late()`; who asks the same again goes on there.
        """
        self.at(self._quiet.get(("next", number), number))
        for turn in self._turns(self._at.number, self.last):
            self._take(turn)
            if turn.commands:
                break
            self._quiet = {("next", number): turn.recorded.number}
            if is_late():
                raise StillReading(turn.recorded.number, self.last)
        return self._at

    def decision_before(self, number: int, is_late: Callable[[], bool] = lambda: False) -> Instant:
        """The last event before this one that gave commands; the first moment if none did.

        Raises: as `decision_after`, but not before some events are looked through.
        """
        end, width = min(self._quiet.get(("last", number), number), self.last + 1) - 1, NEAR
        while end > self.first:
            begin, found = max(self.first, end - width), 0
            self.at(begin)
            for turn in self._turns(begin, end):
                self._take(turn)
                found = turn.recorded.number if turn.commands else found
            if found:
                return self.with_turn(found)
            self._quiet = {("last", number): begin + 1}
            if is_late():
                raise StillReading(begin, self.last)
            end, width = begin, min(2 * width, FIRST_SPACING)
        return self.at(self.first)

    def at_time(self, now: float) -> Instant:
        """The moment at this second of the run."""
        return self.at(self.recording.number_at(now))

    def at_step(self, step: int) -> Instant:
        """The moment after this train step was finished; the newest if it has not been."""
        while self._known < self.last and self._first_steps + len(self._steps) < step:
            self._learn(min(self._known + self.keyframes.spacing, self.last))
        place = step - self._first_steps - 1
        if place < 0:
            return self.at(self.first)
        return self.at(self._steps[place] if place < len(self._steps) else self.last)

    def read_on(self, recording: Recording) -> None:
        """A later look at the same run, which has gone on; what was known stays known."""
        if recording.pruned > self.first:
            self.keyframes.forget_before(recording.pruned)
        self._near = {n: image for n, image in self._near.items() if n >= recording.pruned}
        self.recording = recording

    def offer(self, number: int, image: InParts) -> int:
        """Take a keyframe that somebody else made of this run; events until the next that is of use."""
        self.keyframes.put(number, image)
        return self.keyframes.spacing

    def image(self) -> bytes:
        """The core where it stands, whole. Equal cores have equal images."""
        freezer = Freezer()
        freezer.learn(self._thawer)
        return freezer.freeze(self._at.core)

    def image_in_parts(self) -> InParts | None:
        """The same, to be offered to another one; None if a strategy of the user's holds what none can."""
        return self._image()

    def copy(self) -> Core:
        """The core where it stands once more, to be kept. Raises: LocalError if none can be made."""
        return self._thaw(self._freezer.freeze(self._at.core))

    def _turns(self, after: int, until: int) -> Iterator[Replayed]:
        """The core's steps through these events. Raises: as `turns`; then it stands at a moment before."""
        try:
            yield from turns(self.recording, self._at.core, after, until)
        except CoreFailed:  # in the middle of an event, so that it is the core of no moment
            self._go_to_keyframe(self.nearest(self._at.number))
            raise

    def _take(self, turn: Replayed) -> None:
        """Note one more step of the core."""
        recorded: Recorded = turn.recorded
        core, before = self._at.core, self._at.number
        self._at = Instant(recorded.number, recorded.now, core, turn)
        if before == self._known:  # else events in between were jumped over
            done = core.state.steps - self._first_steps - len(self._steps)
            self._steps += [recorded.number] * done
            self._known = recorded.number
        if recorded.number - self._behind >= self.keyframes.spacing:
            self._behind = self.nearest(recorded.number)
            if recorded.number - self._behind >= self.keyframes.spacing:
                self._keep()
        if self._is_late():
            raise StillReading(recorded.number, self.last)

    def _learn(self, until: int) -> None:
        """Know the train steps up to this event: no event before it is jumped over."""
        if self._known < self.first:  # what lies between was deleted
            self._first_steps, self._steps = self.at(self.first).core.state.steps, []
            self._known, until = self.first, max(until, self.first)
        self.at(self._known)
        for turn in self._turns(self._known, until):
            self._take(turn)
        self._known = until

    def _image(self) -> InParts | None:
        """Of where it stands; None, now and later, if a strategy of the user's holds what no image can."""
        try:
            return self._freezer.freeze_in_parts(self._at.core)
        except LocalError:
            self.keyframes.spacing = max(self.keyframes.spacing, self.last + 1)
            return None

    def _thaw(self, image: bytes | InParts) -> Core:
        core = self._thawer.thaw(image)
        self._freezer.learn(self._thawer)
        return core

    def _keep(self) -> None:
        """Make a keyframe of where it stands, and room for it."""
        if (image := self._image()) is None:
            return
        self._behind = self._at.number
        self.keyframes.put(self._at.number, image)

    def nearest(self, number: int) -> int:
        """The last keyframe at or before this event."""
        usable = [n for n in self.recording.snapshot_numbers if n not in self._unusable and n >= self.first]
        known = sorted({self.first, *self._near, *usable})
        nearest = known[max(0, bisect_right(known, number) - 1)]
        return max(nearest, self.keyframes.before(number) or self.first)

    def _is_worth_it(self, keyframe: int) -> bool:
        """Whether a core is sooner taken up there than stepped there; the last event is always stepped.

        One that follows meets each snapshot that the run makes: at 1,024 instances that is two seconds.
        """
        distance = keyframe - self._at.number
        if distance == 1 or self._goes_back or keyframe in self.keyframes:
            return distance > 1
        return distance * BYTES_AN_EVENT > self.recording.snapshot_bytes(keyframe)

    def _go_to_keyframe(self, number: int) -> None:
        """Take up the core there, or at an earlier one if the run's own snapshot cannot be used."""
        self._behind = number
        image = self._near.get(number) or self.keyframes.find(number)
        if image is not None:
            core = self._thaw(image)
        elif number == self.first:
            core = self.recording.make_core()
        else:
            found = self.recording.snapshot(number)
            if found is None:
                self._unusable.add(number)
                self._go_to_keyframe(self.nearest(number))
                return
            core = found.core
        self._at = Instant(number, core.state.now, core, None)


def moment_of(replayed: ReplayedCore, at: dict[str, str]) -> Instant:
    """The core at an event, a step or a second. Raises: RunError if what was asked for is no moment."""
    try:
        if "event" in at:
            return replayed.at(int(at["event"]))
        if "step" in at:
            if not 0 <= (step := int(at["step"])) < NO_STEP:
                raise ValueError
            return replayed.at_step(step)
        return replayed.at_time(float(at["second"]))
    except (ValueError, OverflowError):
        raise RunError(
            f"{at} is no moment: expected a number behind event, second or step, a step from 0."
        ) from None
