"""JSONL, CSV and TSV files with random access to their rows.

Invariants: the index holds the place of one row in STRIDE, so that 10 million rows take 2.5 MB; a file stays
open, so that reading a row needs no new descriptor; an unreadable row is refused with its line.
"""

import csv
import json
import os
import weakref
from array import array
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

import numpy as np

from controller.data import fingerprints
from controller.data.tables import Found, Rows
from protocol.errors import ConfigError

STRIDE = 64  # rows from one place of the index to the next
CHUNK_BYTES = 4 << 20
NEWLINE, SPACE = 10, 32
MOST_FIELD_CHARS = 1 << 30


class JsonLines(Rows):
    """A JSONL file as a table. Blank lines are no rows."""

    def __init__(self, path: str, most: int | None = None) -> None:
        """Index the first `most` rows, all by default. Raises: ConfigError."""
        self._path = path
        self._places, self._numbers = array("Q"), array("Q")  # of every STRIDE-th row: offset, line
        self._count = 0
        self._file = _opened(self, path)
        try:
            self._index(most)
        except OSError as error:
            raise _unreadable(path, error) from error
        self._next = (-1, 0, 0)  # the row behind the one read last: index, offset, line

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""
        line, number = self._line(index)
        place = f"{self._path}, line {number}"
        try:
            return place, json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8 and lists in lists alike
            raise ConfigError(
                f"{place} is not JSON: {error}. Expected JSON, one object per line, in UTF-8."
            ) from error

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint of the file."""
        return fingerprints.of_files([self._path], self._count)

    def _line(self, index: int) -> tuple[bytes, int]:
        at, offset, number = self._next
        if at != index:
            at = index - index % STRIDE
            offset, number = self._places[at // STRIDE], self._numbers[at // STRIDE]
        self._file.seek(offset)
        while line := self._file.readline():
            offset += len(line)
            number += 1
            at += not line.isspace()
            if at == index + 1 and not line.isspace():
                self._next = (at, offset, number)
                return line, number
        raise ConfigError(
            f"{self._path} ends before its row {index}, and had {self._count} rows when it was opened: it "
            "was shortened meanwhile. Bring the old file back and go on with the same command."
        )

    def _index(self, most: int | None) -> None:
        """Find the lines that are rows, block by block."""
        rest, offset, number = b"", 0, 0
        chunk = CHUNK_BYTES if most is None else CHUNK_BYTES >> 4
        while most is None or self._count < most:
            block = self._file.read(max(chunk, len(rest)))  # as a long line is looked through again each time
            text = rest + (block or (b"\n" if rest else b""))
            if not text:
                return
            ends = np.flatnonzero(np.frombuffer(text, np.uint8) == NEWLINE)
            if len(ends):
                self._take(text, ends, offset, number, most)
                number += len(ends)
                consumed = int(ends[-1]) + 1
                rest, offset = text[consumed:], offset + consumed
            else:
                rest = text

    def _take(self, text: bytes, ends: np.ndarray, offset: int, number: int, most: int | None) -> None:
        begins = np.concatenate(([0], ends[:-1] + 1))
        is_row = begins < ends
        for suspect in np.flatnonzero(np.frombuffer(text, np.uint8)[begins] <= SPACE):
            is_row[suspect] = not text[begins[suspect] : ends[suspect] + 1].isspace()
        rows = np.flatnonzero(is_row)
        if most is not None:
            rows = rows[: most - self._count]
        anchors = rows[-self._count % STRIDE :: STRIDE]
        self._places.extend((begins[anchors] + offset).tolist())
        self._numbers.extend((anchors + number).tolist())
        self._count += len(rows)


class SeparatedValues(Rows):
    """A CSV or TSV file as a table: its first line names the columns, and all values are text."""

    def __init__(self, path: str, most: int | None = None) -> None:
        """Index the first `most` rows, all by default. Raises: ConfigError."""
        csv.field_size_limit(MOST_FIELD_CHARS)  # for the whole process; prompts are longer than the default
        self._path, self._count = path, 0
        self._places, self._numbers = array("Q"), array("Q")
        self._delimiter = "\t" if Path(path).suffix.lower() == ".tsv" else ","
        self._file = _opened(self, path)
        try:
            self._names, place, number, _ = next(self._records(0, 0), ([], 0, 0, 0))
            _check_names(path, self._names)
            for _, after, line, _ in self._records(place, number):
                if self._count == most:
                    break
                if self._count % STRIDE == 0:
                    self._places.append(place)
                    self._numbers.append(number)
                self._count, place, number = self._count + 1, after, line
        except OSError as error:
            raise _unreadable(path, error) from error

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> Found:
        """The place of the row in words, and the row."""
        at, number = index % STRIDE, self._numbers[index // STRIDE]
        for skipped, (values, _, _, line) in enumerate(self._records(self._places[index // STRIDE], number)):
            if skipped == at:
                place = f"{self._path}, line {line}"
                if len(values) != len(self._names):
                    raise ConfigError(
                        f"{place} has {len(values)} values; expected {len(self._names)}, one per column of "
                        f"the first line ({', '.join(self._names)}). Quote values that hold the separator."
                    )
                return place, dict(zip(self._names, values, strict=True))
        raise ConfigError(
            f"{self._path} ends before its row {index}, and had {self._count} rows when it was opened: it "
            "was shortened meanwhile. Bring the old file back and go on with the same command."
        )

    def fingerprint(self) -> fingerprints.Fingerprint:
        """The fingerprint of the file."""
        return fingerprints.of_files([self._path], self._count)

    def _records(self, offset: int, number: int) -> Iterator[tuple[list[str], int, int, int]]:
        """Records from a place in the file on.

        Of each: values, the place behind them, the lines up to there, and the line in which it begins.
        `number`: lines before the first place.
        """
        lines = 0
        self._file.seek(offset)

        def decoded() -> Iterator[str]:
            nonlocal offset, lines
            while line := self._file.readline():
                offset, lines = offset + len(line), lines + 1
                try:
                    yield line.decode("utf-8-sig" if number + lines == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ConfigError(
                        f"{self._path}, line {number + lines} is not UTF-8: {error}. Save the file as UTF-8."
                    ) from error

        first = number + 1
        try:
            for values in csv.reader(decoded(), delimiter=self._delimiter, strict=True):
                begin, first = first, number + lines + 1
                if values:
                    yield values, offset, number + lines, begin
        except csv.Error as error:
            last = number + lines
            place = f"line {last}" if last <= first else f"lines {first} to {last}"
            raise ConfigError(
                f"{self._path}, {place} cannot be read: {error}. Expected values that are quoted as "
                'spreadsheets quote them: one that begins with " ends with " before the separator or the '
                "line's end, and a \" inside it is written twice."
            ) from error


def _check_names(path: str, names: list[str]) -> None:
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(
            f"{path} has the columns {', '.join(map(repr, names))} in its first line; expected names, each "
            "once. Add a first line that names the columns."
        )


def _opened(owner: object, path: str) -> BufferedReader:
    """The open file, which is closed with its owner. Raises: ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    weakref.finalize(owner, os.close, descriptor)
    return open(descriptor, "rb", closefd=False)


def _unreadable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"data.path {path!r} cannot be read: {error.strerror}.")
