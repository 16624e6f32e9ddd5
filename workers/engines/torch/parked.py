"""Parked rows: rows of ended turns, kept while there is room, since their trajectories may continue here.

Invariants: a parked row is not a running row, so it takes room from no generation; each trajectory has at
most one parked row, and the oldest is dropped first; content computed under other weights is used only for
its own trajectory; a row with states, which cannot be cut back, is used only as a whole.

Shapes: T tokens whose keys and values are in the row, from position 0 on.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from workers.engines.torch.cache import KvRows

MIXED = -1
Trajectory = tuple[int, int]
"""(group, member)."""


class Parked(NamedTuple):
    """The content of one row."""

    row: int
    tokens_T: np.ndarray
    updates: int  # weight updates before it was computed; MIXED if some came meanwhile


class Match(NamedTuple):
    """A parked row with the same beginning as a generation."""

    trajectory: Trajectory  # that the row belongs to
    shared: int  # tokens at the beginning of both


class ParkedRows:
    """Parked rows of a cache, oldest first."""

    def __init__(self, cache: KvRows, *, rows: int) -> None:
        self._cache, self._rows = cache, rows
        self._entries: OrderedDict[Trajectory, Parked] = OrderedDict()
        self._at: dict[int, Trajectory] = {}
        self._updates = 0  # weight updates so far
        self._mixed: set[Trajectory] = set()  # that run on content from before the newest update
        self.tokens = 0

    def put(self, trajectory: Trajectory, row: int, tokens_T: np.ndarray) -> None:
        """Park this row, which no longer runs."""
        if trajectory in self._entries:
            self._drop(trajectory)
        updates = MIXED if trajectory in self._mixed else self._updates
        self._mixed.discard(trajectory)
        self._enter(trajectory, Parked(row, tokens_T, updates))

    def match(self, trajectory: Trajectory, tokens_T: np.ndarray) -> Match | None:
        """The best row for these tokens: its own, else one of its group; None if no beginning matches."""
        own = self._entries.get(trajectory)
        if own is not None and (shared := self._shared(own, tokens_T)):
            return Match(trajectory, shared)
        best: Match | None = None
        for other, parked in self._entries.items():
            if other[0] == trajectory[0] and parked.updates == self._updates:
                shared = self._shared(parked, tokens_T)
                if shared > (best.shared if best else 0):
                    best = Match(other, shared)
        return best

    def take(self, trajectory: Trajectory, match: Match, row: int) -> None:
        """Copy or move the shared tokens of a parked row into `row`, for a generation of `trajectory`.

        Its own row is no longer parked; from another trajectory's row it gets a copy.
        """
        parked = self._entries[match.trajectory]
        if match.trajectory != trajectory and parked.row != row:
            self.vacate(row, spared=match.trajectory)
            self._cache.move(parked.row, row, length=match.shared)
            return
        self._drop(match.trajectory)
        if parked.updates != self._updates:
            self._mixed.add(trajectory)
        if parked.row == row:
            return
        there = self._at.get(row)
        if there is None:
            self._cache.move(parked.row, row, length=match.shared)
        else:
            length = max(match.shared, len(self._entries[there].tokens_T))
            self._cache.swap(parked.row, row, length=length)
            self._relocate(there, parked.row)

    def vacate(self, row: int, *, spared: Trajectory | None = None) -> None:
        """Free this row for a generation; a parked row there moves, or the oldest but `spared` is dropped."""
        there = self._at.get(row)
        if there is None:
            return
        free = next((other for other in range(row + 1, self._rows) if other not in self._at), None)
        if free is None:
            oldest = next(trajectory for trajectory in self._entries if trajectory != spared)
            free = self._entries[oldest].row
            self._drop(oldest)
            if oldest == there:
                return
        self._cache.reserve_row(free)
        self._cache.move(row, free, length=len(self._entries[there].tokens_T))
        self._relocate(there, free)

    def has_new_weights(self, running: Iterable[Trajectory] = (), *, keeps: bool) -> None:
        """Note a weight update.

        `running`: trajectories that go on with their rows; `keeps`: content from older weights may still be
        continued.
        """
        self._updates += 1
        self._mixed = set(running)
        if not keeps:
            self._entries.clear()
            self._at.clear()
            self.tokens = 0

    def _shared(self, parked: Parked, tokens_T: np.ndarray) -> int:
        """Leading tokens in common from which the row can be continued."""
        shared = _shared(parked.tokens_T, tokens_T)
        return 0 if self._cache.states.is_needed and shared < len(parked.tokens_T) else shared

    def _enter(self, trajectory: Trajectory, parked: Parked) -> None:
        self._entries[trajectory] = parked
        self._at[parked.row] = trajectory
        self.tokens += len(parked.tokens_T)

    def _drop(self, trajectory: Trajectory) -> None:
        parked = self._entries.pop(trajectory)
        del self._at[parked.row]
        self.tokens -= len(parked.tokens_T)

    def _relocate(self, trajectory: Trajectory, row: int) -> None:
        """Note the new row of a trajectory; its age stays."""
        parked = self._entries[trajectory]
        if self._at.get(parked.row) == trajectory:
            del self._at[parked.row]
        self._entries[trajectory] = parked._replace(row=row)
        self._at[row] = trajectory


def _shared(one_T: np.ndarray, other_T: np.ndarray) -> int:
    """The number of leading tokens in common."""
    length = min(len(one_T), len(other_T))
    differ = np.flatnonzero(one_T[:length] != other_T[:length])
    return int(differ[0]) if len(differ) else length
