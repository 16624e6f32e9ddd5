"""The core at the newest event of a run, for all who look at now.

Invariants: it only goes forward, so nobody who looks back sends it through the history again; once it was at
the end it is of use a little before the end, too: while a controller is as busy as it can be, a core that is
stepped behind it may not reach the end for seconds; of a run that does not go on, the next view may begin
where this one came to.
"""

from collections.abc import Callable
from pathlib import Path

from controller.durability.recording import Recording
from controller.view.past.kept_past import LEAST_READ, find_newest, keep_newest
from controller.view.past.replica import NEAR, Instant, Replica

NEAR_S = 10.0  # of the run


class NewestCore:
    """Of one run; one thread at a time uses it."""

    def __init__(self, run: Path, *, is_live: Callable[[], bool]) -> None:
        """Nothing is read before somebody looks. `is_live`: whether the run goes on."""
        self._run, self._is_live = run, is_live
        self._replica: Replica | None = None
        self._was_at_end = False
        self._kept = 0  # the event up to which the next view of the run need not read

    def go(self, recording: Recording, is_late: Callable[[], bool]) -> tuple[Replica, Instant]:
        """The core at the end of this recording.

        Raises: StillReading at the first event at which `is_late()`; who goes again begins there.
        """
        replica, before = self._begun(recording), recording.last - NEAR
        replica.read_on(recording)
        with replica.hurrying(is_late):
            if before - self._kept >= LEAST_READ and replica.here.number < before:
                replica.at(before)  # so that whoever begins there knows what the last event gave
                self._keep(replica)
            instant = replica.at(recording.last)
        self._was_at_end = True
        return replica, instant

    def near(self, recording: Recording) -> tuple[Replica, Instant] | None:
        """Where it stands, if that is so near to the end that it can be shown as the newest."""
        replica = self._replica
        if replica is None or recording.until_s - replica.here.now > NEAR_S or not self._was_at_end:
            return None
        return replica, replica.here

    def is_at_end(self, recording: Recording) -> bool:
        """Whether this recording has no event that it has not seen."""
        return self._replica is not None and self._replica.here.number >= recording.last

    def _begun(self, recording: Recording) -> Replica:
        if self._replica is None:
            self._replica = Replica(recording, keyframes_bytes=1, goes_back=False)
            if (kept := find_newest(self._run, recording)) is not None:
                self._replica.offer(*kept)
            self._kept = self._replica.nearest(recording.last)
        return self._replica

    def _keep(self, replica: Replica) -> None:
        """Let the next view of this run begin where it stands; of one that goes on there are snapshots."""
        self._kept = replica.here.number
        if not self._is_live() and (image := replica.image_in_parts()) is not None:
            keep_newest(self._run, replica.recording, replica.here.number, image)
