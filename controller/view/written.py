"""What a run wrote beside its journal, as pages want it: lines as columns.

Invariant: a file is read as it is at that moment, and may be in the middle of being written.
"""

import json
import time
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from protocol.errors import RunError

Json = dict[str, Any]
LINES = ("metrics.jsonl", "evaluations.jsonl")
MOST_LINES = 200_000  # of metrics.jsonl
MOST_SAID_BYTES = 4 << 20  # of status.json: 4 kB a worker, of which no run has more than 1,024
SAID = {"steps": int, "steps_wanted": int, "published_version": int, "waiting_for": str, "reason": str}


class Written:
    """Lines of a run's files, which are read again when they have grown."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._read: dict[str, tuple[int, list[Json]]] = {}  # by name, with the size that the file had

    def lines(self, name: str) -> list[Json]:
        """Those of a file. Raises: RunError if it is damaged."""
        path = self._run / name
        size = path.stat().st_size if path.exists() else 0
        known = self._read.get(name)
        if known is None or known[0] != size:
            known = self._read[name] = size, lines_of(path)
        return known[1]

    def readable(self, name: str) -> list[Json]:
        """Those of a file, for pages that are about something else: none if it is damaged."""
        try:
            return self.lines(name)
        except RunError:
            return []

    def damaged(self) -> list[Json]:
        """Which files are, in the form of alarms."""
        found: list[Json] = []
        for name in LINES:
            try:
                self.lines(name)
            except RunError as error:
                remedy = "the journal is whole without it, but no curve and no other alarm is shown"
                found.append(
                    {"name": "damaged file", "owner": name, "evidence": str(error), "remedy": remedy}
                )
        return found


def lines_of(path: Path) -> list[Json]:
    """Whole lines; the last one may be in the middle of being written."""
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    whole = text[: text.rfind("\n") + 1].splitlines()[-MOST_LINES:]
    found: list[Json] = []
    for number, line in enumerate(whole, 1):
        try:
            said = json.loads(line, parse_constant=lambda word: None)  # nan is nothing that could be drawn
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"Line {number} of {path} is no JSON ({error}). Look at the disk, or delete the line."
            ) from error
        if not isinstance(said, dict):
            raise RunError(
                f"Line {number} of {path} is {line[:40]!r}; expected a JSON object. Look at the disk, "
                "or delete the line."
            )
        found.append(said)
    return found


def silent_s(run: Path) -> float | None:
    """Seconds since the run's controller has last written something; None if it has written nothing."""
    found: list[float] = []
    for name in ("run.db", "run.db-wal", "status.json"):
        with suppress(OSError):
            found.append((run / name).stat().st_mtime)
    return max(0.0, time.time() - max(found)) if found else None


def said_in(run: Path) -> Json:
    """Where the run stands by its summary.json, or else status.json; as much of it as can be read."""
    for name in ("summary.json", "status.json"):
        try:
            with (run / name).open("rb") as file:
                found = json.loads(file.read(MOST_SAID_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return {key: found[key] for key, kind in SAID.items() if isinstance(found.get(key), kind)}
    return {}


def by_source(line: Json) -> Json:
    """A line of evaluations.jsonl with the figures of each data source, where there are several."""
    sources = line.get("sources")
    if not isinstance(sources, dict) or len(sources) < 2:
        return line
    found = {
        f"{key} of {name}": value
        for name, figures in sources.items()
        if isinstance(figures, dict)
        for key, value in figures.items()
    }
    return {**line, **found}


def columns_of(lines: list[Json]) -> dict[str, list[float | None]]:
    """By key, a number or nothing for each line."""
    keys = dict.fromkeys(key for line in lines for key, value in line.items() if is_number(value))
    return {key: [value if is_number(value := line.get(key)) else None for line in lines] for key in keys}


def at_most(line: Json, key: str, most: int) -> bool:
    value = line.get(key)
    return isinstance(value, int) and value <= most


def is_number(value: object) -> bool:
    """Whether it can be drawn."""
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
