"""Reads lives of groups from the journal, in short parts, so that other answers do not wait.

Invariants: a life counts up to the newest event that its journal had; who asks again lets the reading go on
where it stood; so much is held at most: MOST_LIVES of them, and MOST_READERS that are under way, each with a
core; one that somebody waits for is given up for nobody, and another one when somebody looks at the run.
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from controller.durability.recording import Recording
from controller.history.story import Beginning
from controller.view.past.life import LifeReader, as_json
from controller.view.past.pursuit import IsLate
from controller.view.past.replayed_core import StillReading

MOST_LIVES, MOST_READERS = 50, 4
WAITED_S = 3.0  # since somebody asked: a page that waits asks at least once in this time
Json = dict[str, Any]


class Lives:
    """The lives of the groups of one history; safe for any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that only grow."""
        self._clock, self._lock = clock, Lock()
        self._known: dict[int, tuple[int, Json]] = {}
        """By group, with up to which event; what was asked for last, last."""
        self._readers: dict[int, tuple[LifeReader, float]] = {}  # by group, with when somebody asked

    def find(
        self,
        recording: Recording,
        group: int,
        begin: Callable[[], Beginning | None],
        late: Callable[[], IsLate],
    ) -> Json:
        """The life of a group, for the page.

        `begin()`: a moment before it, if one is known; `late()` makes what says when this part is to end.
        Raises: StillReading if it is not read by then; RunError if nothing names the group.
        """
        with self._lock:
            last, life = self._known.pop(group, (-1, {}))
            if last != recording.last:
                last, life = self._read(recording, group, begin, late())
            self._known[group] = last, life
            while len(self._known) > MOST_LIVES:
                del self._known[next(iter(self._known))]
            return life

    def forget(self) -> None:
        """Let go of the readings that nobody waits for any more, unless one is going on just now."""
        if self._lock.acquire(blocking=False):
            try:
                self._give_up(None)
            finally:
                self._lock.release()

    def _give_up(self, group: int | None) -> None:
        """Those that nobody has asked for in time, but that of this group."""
        now = self._clock()
        self._readers = {
            number: (reader, asked)
            for number, (reader, asked) in self._readers.items()
            if number == group or now - asked < WAITED_S
        }

    def _read(
        self, recording: Recording, group: int, begin: Callable[[], Beginning | None], is_late: IsLate
    ) -> tuple[int, Json]:
        reader = self._reader(recording, group, begin)
        try:
            life = reader.read(is_late)
        except BaseException:  # it cannot go on from there
            del self._readers[group]
            raise
        if life is None:
            raise StillReading(reader.number, reader.last)
        del self._readers[group]
        return reader.last, as_json(life)

    def _reader(self, recording: Recording, group: int, begin: Callable[[], Beginning | None]) -> LifeReader:
        """Raises: StillReading if so many others are waited for already."""
        self._give_up(group)
        reader, _ = self._readers.get(group, (None, 0.0))
        if reader is None and len(self._readers) >= MOST_READERS:
            raise StillReading(recording.pruned, recording.last)
        if reader is None or reader.number < recording.pruned:  # what it would read next was deleted
            reader = LifeReader(recording, group, begin())
        self._readers[group] = reader, self._clock()
        return reader
