"""The core at the newest event of a run, shared by all pages that show the present.

Invariants: it only goes forward, so nobody who looks back sends it through the history again; once it was at
the end it is of use a little before the end, too: while a controller is as busy as it can be, a core that is
stepped behind it may not reach the end for seconds; of a run that does not go on, the next view may begin
where this one came to.
"""

from collections.abc import Callable
from pathlib import Path

from controller.durability.recording import Recording
from controller.view.past.kept_past import LEAST_READ, find_newest, keep_newest
from controller.view.past.replayed_core import NEAR, Instant, ReplayedCore

NEAR_S = 10.0  # of the run


class NewestCore:
    """The newest core of one run, for one thread at a time."""

    def __init__(self, run: Path, *, is_live: Callable[[], bool]) -> None:
        """Nothing is read before somebody looks. `is_live`: whether the run goes on."""
        self._run, self._is_live = run, is_live
        self._replayed: ReplayedCore | None = None
        self._was_at_end = False
        self._kept = 0  # the event up to which the next view of the run need not read

    def go(self, recording: Recording, is_late: Callable[[], bool]) -> tuple[ReplayedCore, Instant]:
        """The core at the end of this recording.

        Raises: StillReading at the first event at which `is_late()`; who goes again begins there.
        """
        replayed, before = self._begun(recording), recording.last - NEAR
        replayed.read_on(recording)
        with replayed.hurrying(is_late):
            if before - self._kept >= LEAST_READ and replayed.here.number < before:
                replayed.at(before)  # so that whoever begins there knows what the last event gave
                self._keep(replayed)
            instant = replayed.at(recording.last)
        self._was_at_end = True
        return replayed, instant

    def near(self, recording: Recording) -> tuple[ReplayedCore, Instant] | None:
        """Where it stands, if that is so near to the end that it can be shown as the newest."""
        replayed = self._replayed
        if replayed is None or recording.until_s - replayed.here.now > NEAR_S or not self._was_at_end:
            return None
        return replayed, replayed.here

    def is_at_end(self, recording: Recording) -> bool:
        """Whether this recording has no event that it has not seen."""
        return self._replayed is not None and self._replayed.here.number >= recording.last

    def _begun(self, recording: Recording) -> ReplayedCore:
        if self._replayed is None:
            self._replayed = ReplayedCore(recording, keyframes_bytes=1, goes_back=False)
            if (kept := find_newest(self._run, recording)) is not None:
                self._replayed.offer(*kept)
            self._kept = self._replayed.nearest(recording.last)
        return self._replayed

    def _keep(self, replayed: ReplayedCore) -> None:
        """Let the next view of this run begin where it stands; of one that goes on there are snapshots."""
        self._kept = replayed.here.number
        if not self._is_live() and (image := replayed.image_in_parts()) is not None:
            keep_newest(self._run, replayed.recording, replayed.here.number, image)
