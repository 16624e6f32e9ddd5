"""Follows a file of JSON lines that another process writes, or finds its steps where it stands still.

Invariants: only whole lines are given, each once; a file that was written anew, as when a run goes on from
an earlier step, begins again, and who follows it is told; of steps no line is held, but where it is.
"""

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from protocol.errors import RunError

Line = dict[str, Any]


class Tail:
    """One file, from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._offset = 0

    def read(self) -> tuple[list[Line], bool]:
        """New lines, and whether they are the whole of another file than before. Raises: OSError."""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                identity = found.st_dev, found.st_ino
                is_other = self._identity is not None and (
                    identity != self._identity or found.st_size < self._offset
                )
                if is_other:
                    self._offset = 0
                self._identity = identity
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for text in whole.splitlines() if (line := _parsed(text)) is not None], is_other


class StepLines(Sequence[Line]):
    """Lines of steps, in order, of a step that was redone the later one; within `with`.

    A line is read when it is asked for: those of a run of weeks are gigabytes.
    """

    def __init__(self, path: Path) -> None:
        """Raises: OSError."""
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115  # until `__exit__`
        found: dict[int, int] = {}
        offset = 0
        for text in self._file:
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
    """A line as it was meant; one that is none, as after a full disk, is passed over."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def numbers(line: Line) -> dict[str, float]:
    """What of a line can be drawn."""
    return {
        key: float(value)
        for key, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
