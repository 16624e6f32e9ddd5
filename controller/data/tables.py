"""Tables: sources with random access to their rows, and the order of a pass over them.

Invariants: equal files, seed and position give equal rows; no table is held in memory as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from controller.data.fingerprints import Fingerprint

Found = tuple[str, object]  # place of the row in words, and the row
Seed = Sequence[int] | None  # None: rows come in the order of the file


class Table(Protocol):
    """Rows that can be read repeatedly, from any position."""

    @property
    def is_padded(self) -> bool:
        """Whether mappings within a column all have the same keys: null for those that one lacks."""
        ...

    def __len__(self) -> int: ...

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """The rows of one pass from position `start` on, shuffled by `seed`.

        Raises: ConfigError that names the row that cannot be read.
        """
        ...

    def fingerprint(self) -> Fingerprint:
        """Values by which a changed table is recognized, as plain JSON."""
        ...


class Rows(ABC):
    """A table with fast access to any row: a shuffled pass is one permutation of all rows."""

    is_padded = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """As `Table.walk`."""
        if seed is None:
            yield from map(self.row, range(start, len(self)))
            return
        order = np.random.default_rng(seed).permutation(len(self))
        for index in order[start:]:
            yield self.row(int(index))


class Joined(Rows):
    """Several tables with fast access to rows, joined in their order."""

    def __init__(self, parts: Sequence[Rows], fingerprint: Callable[[], Fingerprint]) -> None:
        self._parts, self.fingerprint = parts, fingerprint
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def row(self, index: int) -> Found:
        """As `Rows.row`."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part].row(index - (int(self._ends[part - 1]) if part else 0))
