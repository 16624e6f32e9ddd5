"""Follows a file of JSON lines that another process writes.

Invariants: only whole lines are given, each once; a file that was written anew, as when a run goes on from
an earlier step, begins again, and who follows it is told.
"""

import json
import os
from pathlib import Path
from typing import Any

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
