"""Follows a file of JSON lines that another process writes, or reads its steps by place.

Invariants: only whole lines are given, each once; a file that was rewritten, as when a run goes on from an
earlier step, is read from its beginning, and the reader is told; of steps only places are held, not lines.
"""

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from protocol.errors import RunError
from protocol.files import plain_only

Line = dict[str, Any]
PIECE = 1 << 20  # bytes that are read at once; lines take five times as much as dictionaries


class Tail:
    """One file, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self.end = 0
        """Bytes of the file that were read."""

    def read(self) -> tuple[list[Line], bool]:
        """New lines, those of PIECE bytes or of a longer line; whether they begin another file than before.

        Raises: OSError.
        """
        try:
            with open(self._path, "rb", opener=plain_only) as file:
                found = os.fstat(file.fileno())
                identity = found.st_dev, found.st_ino
                is_other = self._identity is not None and (
                    identity != self._identity or found.st_size < self.end
                )
                if is_other:
                    self.end = 0
                self._identity = identity
                file.seek(self.end)
                texts = file.readlines(PIECE)
        except FileNotFoundError:
            return [], False
        if texts and not texts[-1].endswith(b"\n"):
            del texts[-1]
        self.end += sum(map(len, texts))
        return [line for text in texts if (line := _parsed(text)) is not None], is_other

    def pieces(self) -> Iterator[tuple[list[Line], bool]]:
        """All that is new, piece by piece, each as `read` gives it. Raises: OSError."""
        before = -1
        while before != self.end:
            before = self.end
            lines, is_other = self.read()
            if is_other:
                before = -1
            if lines or is_other:
                yield lines, is_other


class StepLines(Sequence[Line]):
    """Lines of steps, in order, of a step that was redone the later one; within `with`.

    A line is read when it is asked for: those of a run of weeks are gigabytes.
    """

    def __init__(self, path: Path, *, until: int | None = None) -> None:
        """`until`: how many bytes of the file count; None: all. Raises: OSError."""
        self._path = path
        self._file = open(path, "rb", opener=plain_only)  # noqa: SIM115  # until `__exit__`
        found: dict[int, int] = {}
        offset = 0
        for text in self._file:
            if until is not None and offset >= until:
                break
            line = _parsed(text) if text.endswith(b"\n") else None
            if line is not None and isinstance(line.get("step"), int):
                found[line["step"]] = offset
            offset += len(text)
        self._offsets = array("q", (found[step] for step in sorted(found)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> list[Line]: ...
    def __getitem__(self, place: int | slice) -> Line | list[Line]:
        """Raises: RunError if the file was changed since."""
        found = self._offsets[place]
        return self._read(found) if isinstance(found, int) else [*map(self._read, found)]

    def __iter__(self) -> Iterator[Line]:
        return map(self._read, self._offsets)

    def _read(self, offset: int) -> Line:
        self._file.seek(offset)
        line = _parsed(self._file.readline())
        if line is None:
            raise RunError(f"{self._path} was changed while it was read. Run the same command again.")
        return line


def _parsed(text: bytes) -> Line | None:
    """The object in a line; None if it holds none, as after a full disk."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def numbers(line: Line) -> dict[str, float]:
    """The numbers of a line."""
    return {
        key: float(value)
        for key, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
