"""Parquet files, read row group by row group.

Invariants: only the metadata of files is read when they are opened; a pass holds one window of rows, whatever
the files hold. A shuffled pass takes the row groups in an order drawn from the seed, cuts what
they hold into windows, and draws an order for each window: a row group cannot be entered in its middle, so a
permutation of all rows would decode a row group for every row.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from controller.data import fingerprints
from controller.data.tables import Found, Seed
from protocol.errors import ConfigError

WINDOW_ROWS = 65_536
WINDOW_BYTES = 64 << 20
BATCH_ROWS = 1024
BUFFER_BYTES = 1 << 20


class Part(NamedTuple):
    """A row group."""

    file: int
    group: int
    first: int  # row of the file that it begins with
    rows: int


class Parquet:
    """One or more Parquet files as a table."""

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
        row_bytes = max(1, size // max(1, self._count))
        self._window = max(BATCH_ROWS, min(WINDOW_ROWS, WINDOW_BYTES // row_bytes))

    def __len__(self) -> int:
        return self._count

    def fingerprint(self) -> fingerprints.Fingerprint:
        """Of the files' content."""
        return fingerprints.of_files(self._paths, self._count)

    def walk(self, start: int, seed: Seed) -> Iterator[Found]:
        """The rows of one pass from position `start` on. Raises: ConfigError that names the file."""
        order: Any = range(len(self._parts))
        if seed is None:
            for part, first, batch in self._batches(order, start):
                yield from self._rows(part, first, batch)
            return
        order = np.random.default_rng(seed).permutation(len(self._parts))
        number, inside = divmod(start, self._window)
        batches = self._batches(order, number * self._window)
        held: list[tuple[Part, int, Any]] = []
        while held or number * self._window < self._count:
            held = _fill(held, batches, self._window)
            window, held = _cut(held, self._window)
            ends = np.cumsum([batch.num_rows for _, _, batch in window])
            drawn = np.random.default_rng([*seed, number]).permutation(int(ends[-1]))
            for index in drawn[inside:]:
                piece = int(np.searchsorted(ends, index, side="right"))
                part, first, batch = window[piece]
                offset = int(index) - (int(ends[piece - 1]) if piece else 0)
                yield from self._rows(part, first + offset, batch.slice(offset, 1))
            number, inside = number + 1, 0

    def _rows(self, part: Part, first: int, batch: Any) -> Iterator[Found]:
        path = self._paths[part.file]
        for number, row in enumerate(batch.to_pylist(), first):
            yield f"{path}, row {number}", row

    def _batches(self, order: Any, skip: int) -> Iterator[tuple[Part, int, Any]]:
        """Batches of these row groups in order, without the first `skip` rows.

        With each comes the row of the file that it begins with.
        """
        for index in order:
            part = self._parts[index]
            if skip >= part.rows:
                skip -= part.rows
                continue
            path, first = self._paths[part.file], part.first
            try:
                for batch in self._files[part.file].iter_batches(
                    BATCH_ROWS, row_groups=[part.group], use_threads=False
                ):
                    left_out = min(skip, batch.num_rows)
                    if left_out < batch.num_rows:
                        yield part, first + left_out, batch.slice(left_out)
                    first, skip = first + batch.num_rows, skip - left_out
            except self._failures as error:
                raise _unreadable(f"{path}, row group {part.group}", error) from error


def _fill(held: list[Any], batches: Iterator[Any], rows: int) -> list[Any]:
    """With as many more batches as make a window, or all that are left."""
    count = sum(batch.num_rows for _, _, batch in held)
    while count < rows and (found := next(batches, None)) is not None:
        held.append(found)
        count += found[2].num_rows
    return held


def _cut(held: list[Any], rows: int) -> tuple[list[Any], list[Any]]:
    """The first `rows` rows, and the rest."""
    window: list[Any] = []
    while held and rows:
        part, first, batch = held.pop(0)
        if batch.num_rows > rows:
            held.insert(0, (part, first + rows, batch.slice(rows)))
            batch = batch.slice(0, rows)
        window.append((part, first, batch))
        rows -= batch.num_rows
    return window, held


def _unreadable(place: str, error: Exception) -> ConfigError:
    what = " ".join(str(error).split())[:200]
    return ConfigError(
        f"{place} cannot be read as Parquet: {what}. Expected a whole file: write or copy it again."
    )
