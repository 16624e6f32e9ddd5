"""Lines of metrics.jsonl, held as columns: a sixth of the memory of a dictionary for each line.

Invariants: a line holds its finite numbers, and no other values; lines that were handed out do not change
when more are added; a thinned curve says so, and keeps its least, its greatest and its newest points."""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import overload

import numpy as np

WHOLE = 1_000  # newest lines of a thinned curve that are points of their own
OLDER = 1_000  # points for all lines before those, two for each span of lines
LINES_PER_POINT = "lines per point"
"""A further column of thinned curves; no key of a line has spaces."""

Number = int | float


class LineColumns:
    """A column of numbers for each key, which grows with each line."""

    def __init__(self, most: int, *, only: Collection[str] | None = None) -> None:
        """`most`: newest lines that are kept. `only`: keys that are kept; None: all."""
        self._most, self._only, self._count = most, only, 0
        self._columns: dict[str, array[float]] = {}
        self.lines = MetricLines({}, 0, 0)
        """All lines that are kept."""

    def add(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Add lines behind those that are kept."""
        columns, only = self._columns, self._only
        for line in lines:
            for key, value in line.items() if only is None else [(key, line.get(key)) for key in only]:
                if (number := _finite(value)) is not None:
                    if (column := columns.get(key)) is None:
                        column = columns[key] = array("d")
                    if missing := self._count - len(column):
                        column.extend([nan] * missing)
                    column.append(number)
            self._count += 1
        if (surplus := self._count - self._most) > self._most // 8:  # others may hold the old columns
            self._columns = {key: column[surplus:] for key, column in self._columns.items()}
            self._count -= surplus
        self.lines = MetricLines(dict(self._columns), max(0, self._count - self._most), self._count)


class MetricLines(Sequence[Mapping[str, Number]]):
    """Consecutive lines, as a view of columns."""

    def __init__(self, columns: Mapping[str, "array[float]"], start: int, stop: int) -> None:
        """`columns`: may be shorter than `stop`, and may grow behind it."""
        self._columns, self._start, self._stop = columns, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, place: int) -> "MetricLine": ...
    @overload
    def __getitem__(self, place: slice) -> "MetricLines": ...
    def __getitem__(self, place: int | slice) -> "MetricLine | MetricLines":
        inside = range(self._start, self._stop)[place]
        if isinstance(inside, int):
            return MetricLine(self._columns, inside)
        if inside.step != 1:
            raise ValueError(
                f"Every {inside.step}. line was asked for; expected lines that follow each other."
            )
        return MetricLines(self._columns, inside.start, inside.stop)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def column(self, key: str, *, most: float = inf) -> list[Number | None]:
        """The number of each line under a key; None if it has none. `most`: larger ones count as this."""
        return _plain(np.clip(self._values(key), -most, most))

    def columns(self) -> dict[str, list[Number | None]]:
        """By key, the points of a curve; of many lines only about WHOLE + OLDER points.

        Then older lines are thinned by spans to two points each: for each key the least and the greatest of
        the span, in their order. LINES_PER_POINT says how many lines each point stands for.
        """
        keys = [key for key in self._columns if not np.isnan(self._values(key)).all()]
        older = len(self) - WHOLE
        if older <= OLDER:
            return {key: self.column(key) for key in keys}
        held = -(-2 * older // OLDER)
        spans = older // held
        found: dict[str, list[Number | None]] = {
            key: _plain(_thinned(self._values(key), spans, held)) for key in keys
        }
        per_point: list[Number | None] = [held / 2] * (2 * spans)
        return found | {LINES_PER_POINT: per_point + [1] * (len(self) - spans * held)}

    def up_to(self, step: int) -> Sequence[Mapping[str, Number]]:
        """Lines of train steps up to `step`."""
        reached = self._values("step") <= step
        count = int(reached.sum())
        if reached[:count].all():
            return self[:count]
        return [self[int(place)] for place in np.flatnonzero(reached)]

    def _values(self, key: str) -> "np.ndarray":
        """The values of a key, nan for none; a copy, as a column with a view of it could not grow."""
        column = self._columns.get(key, array("d"))[self._start : self._stop]
        column.extend([nan] * (len(self) - len(column)))
        return np.frombuffer(column)


class MetricLine(Mapping[str, Number]):
    """The numbers of one line."""

    __slots__ = ("_columns", "_place")

    def __init__(self, columns: Mapping[str, "array[float]"], place: int) -> None:
        """The line at this place of the columns."""
        self._columns, self._place = columns, place

    def __getitem__(self, key: str) -> Number:
        column = self._columns[key]
        if self._place >= len(column) or (value := column[self._place]) != value:
            raise KeyError(key)
        return _shortest(value)

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._columns if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _finite(value: object) -> float | None:
    """The value as a finite number; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _thinned(values: "np.ndarray", spans: int, held: int) -> "np.ndarray":
    """The least and greatest value of each span of `held` lines, in order; then all other lines."""
    cut = spans * held
    older = values[:cut].reshape(spans, held)
    least = np.where(np.isnan(older), np.inf, older).argmin(axis=1)
    most = np.where(np.isnan(older), -np.inf, older).argmax(axis=1)
    places = np.sort(np.stack([least, most], axis=1), axis=1)
    return np.concatenate([np.take_along_axis(older, places, axis=1).ravel(), values[cut:]])


def _plain(values: "np.ndarray") -> list[Number | None]:
    return [None if value != value else _shortest(value) for value in values.tolist()]


def _shortest(value: float) -> Number:
    """The value as int if it is whole, as in the file."""
    return int(value) if value.is_integer() else value
