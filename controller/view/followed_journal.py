"""Reads the journal of a shown run again when it has changed, and checks whether its history goes on.

Invariants: the journal is read again whenever it may have changed: while the run goes on, once after its end,
and where its file is another or was written to; of two looks it is known whether the later one goes on with
the history of the earlier, so that nothing that was found out of one history is taken for another's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from controller.durability.recording import Recording
from protocol.errors import RunError
from protocol.files import is_dir

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of the journal and its write-ahead log: inode, bytes and nanosecond of the last change; None of no file."""


class Look(NamedTuple):
    """One look at the journal."""

    recording: Recording
    goes_on: bool  # with the history of the look before; so does the first


class FollowedJournal:
    """The journal of one run; one thread at a time looks at it."""

    def __init__(self, run: Path, *, is_live: Callable[[], bool]) -> None:
        """Nothing is read before the first look.

        `run`: a run directory or its run.db; `is_live`: whether its controller is at work.
        """
        self._run, self._is_live = run, is_live
        self._known: Recording | None = None
        self._stamp: Stamp | None = None  # None: it may have been written to since

    def look(self) -> Look:
        """The journal as it is now. Raises: RunError if this release cannot read it."""
        stamp = None if self._is_live() else self._seen()
        known = self._known
        if known is not None and stamp is not None and stamp == self._stamp:
            return Look(known, True)
        found = self._read()
        look = Look(found, known is None or goes_on_with(found, known))
        self._known, self._stamp = found, stamp
        return look

    def _read(self) -> Recording:
        """Raises: RunError if this release cannot read it, or the user may not enter its folder."""
        try:
            return Recording(self._run)
        except OSError as error:
            raise RunError(
                f"{self._run} cannot be read: {error.strerror}. Expected a run in folders that you may "
                "enter: ask its owner, or look at a copy."
            ) from error

    def _seen(self) -> Stamp:
        file = self._run / "run.db" if is_dir(self._run) else self._run
        return tuple(_changed(place) for place in (file, file.with_name(f"{file.name}-wal")))


def _changed(file: Path) -> tuple[int, int, int] | None:
    try:
        seen = file.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


def goes_on_with(later: Recording, earlier: Recording) -> bool:
    """Whether one look tells the same history as an earlier one, and what came behind it.

    It does not if the run directory was replaced, if a controller has left events out since, or if a compact
    run has deleted all that the earlier look knew of. Raises: RunError.
    """
    last = earlier.last
    skipped = [[number for number in one.skipped if number <= last] for one in (later, earlier)]
    is_of_one_run = later.facts["config"] == earlier.facts["config"] and skipped[0] == skipped[1]
    return is_of_one_run and later.mark(last) == earlier.end
