"""What every source with random access promises, and the order of a pass over it.

Invariants: equal files, seed and position give equal rows; no table is held in memory as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from controller.data.fingerprints import Fingerprint

Found = tuple[str, object]  # place in words, and the row
Seed = Sequence[int] | None  # None: rows come in the order of the file


class Table(Protocol):
    """Rows that can be walked over again and again, from any position."""

    def __len__(self) -> int: ...

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """The rows of one pass from position `start` on, shuffled by `seed`.

        Raises: ConfigError that names the row that cannot be read.
        """
        ...

    def fingerprint(self) -> Fingerprint:
        """What tells this table from one that was changed, as plain values."""
        ...


class Rows(ABC):
    """A table whose rows are equally near: a pass is one permutation of all of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, index: int) -> Found:
        """The row, and its place in words."""

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """As `Table.walk`."""
        if seed is None:
            yield from map(self.row, range(start, len(self)))
            return
        order = np.random.default_rng(seed).permutation(len(self))
        for index in order[start:]:
            yield self.row(int(index))


class Joined(Rows):
    """Several tables of equally near rows as one, in their order."""

    def __init__(self, parts: Sequence[Rows], fingerprint: Callable[[], Fingerprint]) -> None:
        self._parts, self.fingerprint = parts, fingerprint
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def row(self, index: int) -> Found:
        """As `Rows.row`."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self._parts[part].row(index - (int(self._ends[part - 1]) if part else 0))
