"""Lines of metrics.jsonl, held as columns: a sixth of the memory of a dictionary for each line.

Invariants: a line is the numbers that it has: what is none, or not finite, is left out; who holds lines keeps
them while others come; a curve that is thinned says so, keeps its least and its most, and its newest lines.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import overload

import numpy as np

WHOLE = 1_000  # newest lines of a thinned curve, each of which is a point
OLDER = 1_000  # points for all lines before those, two for each span of lines
LINES_PER_POINT = "lines per point"
"""The column that a thinned answer has beside those of the lines; no key of a line has spaces."""

Number = int | float


class LineColumns:
    """A column of numbers for each key, which grows with each line."""

    def __init__(self, most: int, *, only: Collection[str] | None = None) -> None:
        """`most`: lines that are kept, the newest. `only`: keys that are kept; None: all."""
        self._most, self._only, self._count = most, only, 0
        self._columns: dict[str, array[float]] = {}
        self.lines = MetricLines({}, 0, 0)
        """All that are kept."""

    def add(self, lines: Iterable[Mapping[str, object]]) -> None:
        """Take in what came behind those that are there."""
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
        if (surplus := self._count - self._most) > self._most // 8:  # others may look at the old columns
            self._columns = {key: column[surplus:] for key, column in self._columns.items()}
            self._count -= surplus
        self.lines = MetricLines(dict(self._columns), max(0, self._count - self._most), self._count)


class MetricLines(Sequence[Mapping[str, Number]]):
    """Some lines, one behind the other."""

    def __init__(self, columns: Mapping[str, "array[float]"], start: int, stop: int) -> None:
        """`columns`: which may be shorter than `stop`, and may grow behind it."""
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

    def column(self, key: str) -> list[Number | None]:
        """A number or nothing for each line."""
        return _plain(self._values(key))

    def columns(self) -> dict[str, list[Number | None]]:
        """By key, the points of a curve; WHOLE + OLDER of them, or a few more, where there are more lines.

        Then the older lines are in spans, each with two points: for each key the least and the most of the
        span, in their order. LINES_PER_POINT says for how many lines each point stands.
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
        """Those of train steps up to this one."""
        reached = self._values("step") <= step
        count = int(reached.sum())
        if reached[:count].all():
            return self[:count]
        return [self[int(place)] for place in np.flatnonzero(reached)]

    def _values(self, key: str) -> "np.ndarray":
        """With nan for nothing; of its own, as a column that is looked at could not grow."""
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
    """What can be drawn of a value; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _thinned(values: "np.ndarray", spans: int, held: int) -> "np.ndarray":
    """Least and most of each span of so many lines, as they came; behind them all other lines."""
    cut = spans * held
    older = values[:cut].reshape(spans, held)
    least = np.where(np.isnan(older), np.inf, older).argmin(axis=1)
    most = np.where(np.isnan(older), -np.inf, older).argmax(axis=1)
    places = np.sort(np.stack([least, most], axis=1), axis=1)
    return np.concatenate([np.take_along_axis(older, places, axis=1).ravel(), values[cut:]])


def _plain(values: "np.ndarray") -> list[Number | None]:
    return [None if value != value else _shortest(value) for value in values.tolist()]


def _shortest(value: float) -> Number:
    """A whole number as one, as a line has it."""
    return int(value) if value.is_integer() else value
