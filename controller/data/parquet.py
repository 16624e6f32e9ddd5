"""Parquet files, read row group by row group.

Invariants: only the metadata of files is read when they are opened; a pass holds about HELD_BYTES of rows
and one batch, whatever the files hold. A shuffled pass takes the row groups in an order drawn from the seed,
cuts what they hold into windows, and draws an order for each window: a row group cannot be entered in its
middle, so a permutation of all rows would decode a row group for every row. A window is cut by the size that
rows have in the file; a window that is larger in memory is read again for each HELD_BYTES of it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from controller.data import fingerprints
from controller.data.tables import Found, Seed
from protocol.errors import ConfigError

WINDOW_ROWS, LEAST_WINDOW_ROWS = 65_536, 1024
WINDOW_BYTES = 64 << 20  # as the file encodes them: these three fix the order of a pass, so they never change
HELD_BYTES = 64 << 20  # of rows in memory
BATCH_ROWS, FIRST_BATCH_ROWS = 1024, 16  # rows decoded at once; the second while their size is not known
BATCH_BYTES = 4 << 20  # of rows decoded at once, by the largest rows so far
BUFFER_BYTES = 1 << 20
UNREADABLE = (ValueError, ArithmeticError, LookupError, NotImplementedError)
"""What pyarrow raises at a value that Python cannot hold: text not in UTF-8, a far time, an unknown zone."""


class Part(NamedTuple):
    """A row group."""

    file: int
    group: int
    first: int  # row of the file that it begins with
    rows: int


class RowBatch(NamedTuple):
    """Consecutive rows of a row group."""

    part: Part
    first: int  # row of the file that it begins with
    rows: Any


class HeldRows(NamedTuple):
    """Rows of a batch that are held until it is their turn."""

    part: Part
    numbers: np.ndarray  # of the rows in their file
    turns: np.ndarray  # in the window
    places: np.ndarray  # in the batch
    batch: Any

    def where(self, wanted: np.ndarray) -> "HeldRows":
        """The rows at the wanted places."""
        return HeldRows(self.part, self.numbers[wanted], self.turns[wanted], self.places[wanted], self.batch)

    def alone(self) -> "HeldRows":
        """A copy that does not hold the batch's other rows in memory."""
        if len(self.places) == self.batch.num_rows:
            return self
        batch = self.batch.take(self.places)  # its first call takes 0.3 s for imports
        return HeldRows(self.part, self.numbers, self.turns, np.arange(len(self.places)), batch)


class RowStream:
    """A stream of batches from which any number of rows is taken."""

    def __init__(self, batches: Iterator[RowBatch]) -> None:
        self._batches = batches
        self._rest: RowBatch | None = None

    def take(self, count: int) -> Iterator[RowBatch]:
        """The next `count` rows, or all that are left; the iterator has to be read to its end."""
        while count and (found := self._rest or next(self._batches, None)) is not None:
            part, first, rows = found
            self._rest = RowBatch(part, first + count, rows.slice(count)) if rows.num_rows > count else None
            rows = rows.slice(0, count)
            count -= rows.num_rows
            yield RowBatch(part, first, rows)


class Parquet:
    """One or more Parquet files as a table."""

    is_padded = True

    def __init__(self, paths: list[str]) -> None:
        """Read the metadata. Raises: ConfigError."""
        import pyarrow  # an extra
        import pyarrow.parquet as parquet

        self._paths = paths
        self._failures = (pyarrow.ArrowException, OSError)
        self._files: list[Any] = []
        self._parts: list[Part] = []
        size = 0
        for number, path in enumerate(paths):
            try:
                file = parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
            except self._failures as error:
                raise _unreadable(path, error) from error
            self._files.append(file)
            first = 0
            for group in range(file.metadata.num_row_groups):
                about = file.metadata.row_group(group)
                if about.num_rows:
                    self._parts.append(Part(number, group, first, about.num_rows))
                first, size = first + about.num_rows, size + about.total_byte_size
        self._count = sum(part.rows for part in self._parts)
        self._encoded_bytes = row_bytes = max(1, size // max(1, self._count))
        self._row_bytes = 0  # of a row in memory, in the batch with the largest rows so far
        self._window = max(LEAST_WINDOW_ROWS, min(WINDOW_ROWS, WINDOW_BYTES // row_bytes))

    def __len__(self) -> int:
        return self._count

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint of the files."""
        return fingerprints.of_files(self._paths, self._count)

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """The rows of one pass from position `start` on. Raises: ConfigError that names the file."""
        order: Any = range(len(self._parts))
        if seed is None:
            for part, first, batch in self._batches(order, start):
                yield from self._in_order(part, first, batch)
            return
        order = np.random.default_rng(seed).permutation(len(self._parts))
        number, inside = divmod(start, self._window)
        stream = RowStream(self._batches(order, number * self._window))
        while (begin := number * self._window) < self._count:
            rows = min(self._window, self._count - begin)
            turns = np.argsort(np.random.default_rng([*seed, number]).permutation(rows))
            while inside < rows:
                held = _gather(stream.take(rows), turns, inside)
                inside += sum(len(piece.turns) for piece in held)
                if inside < rows:  # read the whole window again for its other rows
                    stream = RowStream(self._batches(order, begin))
                yield from self._in_turn(held)
                held.clear()  # before the next HELD_BYTES are read
            number, inside = number + 1, 0

    def _in_turn(self, held: list[HeldRows]) -> Iterator[Found]:
        ends = np.cumsum([len(piece.turns) for piece in held])
        for index in np.argsort(np.concatenate([piece.turns for piece in held])):
            place = int(np.searchsorted(ends, index, side="right"))
            piece = held[place]
            offset = int(index) - (int(ends[place - 1]) if place else 0)
            row = piece.batch.slice(int(piece.places[offset]), 1)
            yield self._found(piece.part, piece.numbers[offset], row)

    def _in_order(self, part: Part, first: int, batch: Any) -> Iterator[Found]:
        """The rows of a batch: converted together, which is several times as fast as one by one."""
        try:
            rows = batch.to_pylist()
        except UNREADABLE:  # as in `_found`, which names the row
            for offset in range(batch.num_rows):
                yield self._found(part, first + offset, batch.slice(offset, 1))
            return
        for number, row in enumerate(rows, first):
            yield self._place(part, number), row

    def _place(self, part: Part, number: int) -> str:
        return f"{self._paths[part.file]}, row {number}"

    def _found(self, part: Part, number: int, row: Any) -> Found:
        """A batch of one row, with its place in words. Raises: ConfigError."""
        place = self._place(part, number)
        try:
            return place, row.to_pylist()[0]
        except UNREADABLE as error:
            named = zip(row.schema.names, row.columns, strict=True)
            odd = ", ".join(repr(name) for name, column in named if not _has_value(column))
            if not odd:
                raise
            raise ConfigError(
                f"{place} has a value in {odd} that cannot be read: {str(error).rstrip('.')}. Expected text "
                "in UTF-8, and times in microseconds of the years 1 to 9999. Mend it where the data is made, "
                "or leave the column out of the file."
            ) from error

    def _batches(self, order: Any, skip: int) -> Iterator[RowBatch]:
        """Batches of these row groups in order, without the first `skip` rows."""
        for index in order:
            part = self._parts[index]
            if skip >= part.rows:
                skip -= part.rows
                continue
            yield from self._of_row_group(part, skip)
            skip = 0

    def _of_row_group(self, part: Part, skip: int) -> Iterator[RowBatch]:
        """Batches of a row group without its first `skip` rows; their size follows the size of rows."""
        file = self._files[part.file]
        while skip < part.rows:
            at, count = 0, self._rows_at_once()
            try:
                for decoded in file.iter_batches(count, row_groups=[part.group], use_threads=False):
                    rows = _plain(decoded)
                    first = max(skip, at)
                    at += rows.num_rows
                    if at > first:
                        skip = at
                        yield RowBatch(part, part.first + first, rows.slice(rows.num_rows - (at - first)))
                    self._row_bytes = max(self._row_bytes, rows.nbytes // max(1, rows.num_rows), 1)
                    better = self._rows_at_once()
                    if better * 2 < count or better > count:
                        break
                else:
                    return
            except self._failures as error:
                raise _unreadable(f"{self._paths[part.file]}, row group {part.group}", error) from error

    def _rows_at_once(self) -> int:
        most = BATCH_ROWS if self._row_bytes else FIRST_BATCH_ROWS
        return min(most, max(1, BATCH_BYTES // max(self._row_bytes, self._encoded_bytes)))


def _plain(rows: Any) -> Any:
    """The rows with categories decoded to values: else each batch's size would include all categories."""
    columns = [one.dictionary_decode() if hasattr(one, "dictionary_decode") else one for one in rows.columns]
    return type(rows).from_arrays(columns, names=rows.schema.names)


def _has_value(column: Any) -> bool:
    """Whether the values of a column can be had in Python."""
    try:
        column.to_pylist()
    except UNREADABLE:  # as above, where it is told
        return False
    return True


def _gather(batches: Iterable[RowBatch], turns: np.ndarray, inside: int) -> list[HeldRows]:
    """The next rows of a window in shuffled order: as many as may be held, at least one.

    `turns`: the turn of each row of the window; turns before `inside` are over.
    """
    held: list[HeldRows] = []
    at, size, end = 0, 0, len(turns)
    for part, first, rows in batches:
        places = np.arange(rows.num_rows)
        piece = HeldRows(part, first + places, turns[at : at + rows.num_rows], places, rows)
        at += rows.num_rows
        piece = piece.where((piece.turns >= inside) & (piece.turns < end))
        if len(piece.turns):
            held.append(piece)
            size += rows.nbytes
        del piece, rows  # else a batch of which few rows are held stays in memory until the next one
        while size > HELD_BYTES and (count := sum(len(piece.turns) for piece in held)) > 1:
            for place, piece in enumerate(held):  # one by one, so that memory never holds two copies of all
                held[place] = piece.alone()
            size = sum(piece.batch.nbytes for piece in held)
            if size > HELD_BYTES:
                end = int(np.sort(np.concatenate([piece.turns for piece in held]))[count * 3 // 4])
                for place, piece in enumerate(held):
                    held[place] = piece.where(piece.turns < end).alone()
                held = [piece for piece in held if len(piece.turns)]
                size = sum(piece.batch.nbytes for piece in held)
    return held


def _unreadable(place: str, error: Exception) -> ConfigError:
    what = " ".join(str(error).split())[:200]
    return ConfigError(
        f"{place} cannot be read as Parquet: {what}. Expected a whole file: write or copy it again."
    )
