"""Reads the files that a run writes beside its journal, for pages: lines as columns.

Invariants: a file is read as it is at that moment, and may be in the middle of being written; of a long file
no more is in memory at once than AT_ONCE_BYTES and what is kept of it.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

from controller.history.alarms import alarms
from controller.history.metric_lines import LineColumns, MetricLines
from protocol.errors import RunError
from protocol.files import plain_only

Json = dict[str, Any]
Lines = Sequence[Mapping[str, Any]]
IsLate = Callable[[], bool]
NO_LINES: Lines = []
LINES = METRICS, EVALUATIONS = ("metrics.jsonl", "evaluations.jsonl")
MOST_LINES = 200_000  # of a file
AT_ONCE_BYTES = 4 << 20  # of a file, of which the lines are read
GROWING = ("run.db", "run.db-wal", "status.json")
SILENT_S = 15.0  # status.json is written every 10 s, though nothing has changed
KNOWN_BYTES = 64  # of the end of a line that tell one file from another
MOST_SAID_BYTES = 4 << 20  # of status.json: 4 kB a worker, of which no run has more than 1,024
OF_ALARMS = ("name", "owner", "evidence", "remedy")
SAID = {"steps": int, "steps_wanted": int, "published_version": int, "waiting_for": str, "reason": str}


QUICKLY = msgspec.json.Decoder()
PATIENTLY = json.JSONDecoder(parse_constant=lambda word: None)  # nan is nothing that could be drawn


class Alarmed(NamedTuple):
    """What was wrong, and after which lines: a page asks again before there are others."""

    lines: Lines
    evaluations: Lines
    steps: int
    found: list[Json]


class Written:
    """Lines of a run's files, of which new ones are read when somebody looks."""

    def __init__(self, run: Path, *, only: Collection[str] | None = None) -> None:
        """`only`: keys of metrics.jsonl that are kept; None: all."""
        self._files = {
            METRICS: GrowingLines(run / METRICS, lambda: LineColumns(MOST_LINES, only=only)),
            EVALUATIONS: GrowingLines(run / EVALUATIONS),
        }
        self.own = OwnWords(run)
        self._alarmed: Alarmed | None = None

    def lines(self, name: str) -> Lines:
        """Those of a file. Raises: RunError if it is damaged."""
        return self._files[name].read()

    def way(self, is_late: IsLate) -> tuple[str, int, int] | None:
        """Which file is not read to its end, though some of it now, and how far in bytes; None if all are."""
        for name, file in self._files.items():
            with suppress(RunError):  # a damaged one is told by who shows it
                if not file.read_on(is_late):
                    return name, *file.way
        return None

    def readable(self, name: str) -> Lines:
        """Those of a file, for pages that are about something else: none if it is damaged."""
        try:
            return self.lines(name)
        except RunError:
            return NO_LINES

    def alarms(self, steps: int, *, bound: int) -> list[Json]:
        """What was wrong after this train step, with readable files."""
        lines, evaluations = (self.readable(name) for name in LINES)
        known = self._alarmed
        is_known = known is not None and known.lines is lines and known.evaluations is evaluations
        if known is None or not is_known or known.steps != steps:
            made = lines.up_to(steps) if isinstance(lines, MetricLines) else ()
            evaluated = [line for line in evaluations if at_most(line, "policy_version", steps)]
            found = [alarm._asdict() for alarm in alarms(made, evaluated, bound=bound)]
            known = self._alarmed = Alarmed(lines, evaluations, steps, found)
        return known.found

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


class OwnWords:
    """The controller's figures and alarms in status.json, read again when it has changed."""

    def __init__(self, run: Path) -> None:
        self._path = run / "status.json"
        self._known: tuple[tuple[int, int], Json] = (0, 0), {}

    def figures(self) -> dict[str, float]:
        """How late its loop comes, and the room on its disk; those that are there."""
        told = self._read().get("controller")
        figures = told.items() if isinstance(told, dict) else ()
        return {key: value for key, value in figures if is_number(value)}

    def alarms(self) -> list[Json]:
        """Those of the controller's own loop and disk; others a page finds in the journal."""
        found = self._read().get("alarms")
        if not isinstance(found, list):
            return []
        told = [one for one in found if isinstance(one, dict) and one.get("owner") == "controller"]
        return [{key: str(one.get(key, "")) for key in OF_ALARMS} for one in told]

    def _read(self) -> Json:
        try:
            seen = self._path.stat()
            version = seen.st_ino, seen.st_mtime_ns
            if version != self._known[0]:
                self._known = version, object_in(self._path)
        except OSError:
            return {}
        return self._known[1]


class Kept(Protocol):
    """What keeps lines of a file that grows: `lines` are others when there are more; one may hold them."""

    @property
    def lines(self) -> Lines:
        """All that are kept."""
        ...

    def add(self, lines: list[Json]) -> None:
        """Keep these, too."""


class Listed:
    """Keeps lines as they are, with all that is in them."""

    def __init__(self) -> None:
        self.lines: Lines = []

    def add(self, lines: list[Json]) -> None:
        """Another list: who holds one keeps it."""
        self.lines = [*self.lines, *lines][-MOST_LINES:]


class GrowingLines:
    """The whole lines of a file that grows: what was read is not read again, unless the file is another."""

    def __init__(self, path: Path, make: Callable[[], Kept] = Listed) -> None:
        """`make`: what keeps them."""
        self._path, self._make, self._lock = path, make, Lock()  # pages are answered by several threads
        self._size = 0  # of the file, as it was when it was opened
        self._forget()

    def _forget(self) -> None:
        self._inode, self._offset = 0, 0
        self._behind = b""  # what lies before the offset, which another file would not have
        self._count, self._kept = 0, self._make()

    def read(self) -> Lines:
        """All; the very ones of before if there are no new ones. Raises: RunError at a damaged one."""
        with self._lock:
            self._read(lambda: False)
            return self._kept.lines

    def read_on(self, is_late: IsLate) -> bool:
        """Whether all are read, and if not, then some more than before. Raises: RunError at a damaged one."""
        with self._lock:
            return self._read(is_late)

    @property
    def way(self) -> tuple[int, int]:
        """Bytes that are read, and those of the file."""
        return self._offset, max(self._offset, self._size)

    def _read(self, is_late: IsLate) -> bool:
        try:
            with open(self._path, "rb", opener=plain_only) as file:
                self._go_on(file)
                begun, first = b"", self._offset
                while data := file.read(AT_ONCE_BYTES):
                    begun = self._add(begun + data)
                    if self._offset > first and file.tell() < self._size and is_late():
                        return False
        except FileNotFoundError:
            if self._count:
                self._forget()
        except OSError as error:
            raise RunError(f"{self._path} cannot be read: {error.strerror}.") from error
        return True

    def _add(self, data: bytes) -> bytes:
        """Keep the whole lines; the beginning of one more is left. Raises: RunError at a damaged one."""
        whole = data[: data.rfind(b"\n") + 1]
        if whole:
            found = _parsed(self._path, whole, self._count)
            self._offset, self._count = self._offset + len(whole), self._count + len(found)
            self._behind = (self._behind + whole)[-KNOWN_BYTES:]
            self._kept.add(found)
        return data[len(whole) :]

    def _go_on(self, file: BinaryIO) -> None:
        """To what lies behind what was read."""
        found = os.fstat(file.fileno())
        inode, self._size = found.st_ino, found.st_size
        file.seek(self._offset - len(self._behind))
        if inode != self._inode or file.read(len(self._behind)) != self._behind:
            self._forget()
            self._inode = inode
            file.seek(0)


def newest_of(path: Path) -> Json:
    """The last whole line of a file, of which no more is read than its end; {} where that tells nothing."""
    try:
        with open(path, "rb", opener=plain_only) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - AT_ONCE_BYTES))
            whole, _, _ = file.read().rpartition(b"\n")
        return _parsed(path, whole[whole.rfind(b"\n") + 1 :], 0)[-1] if whole else {}
    except (OSError, RunError):
        return {}


def lines_of(path: Path) -> Lines:
    """Whole lines; the last one may be in the middle of being written. Raises: RunError."""
    return GrowingLines(path).read()


def _parsed(path: Path, whole: bytes, before: int) -> list[Json]:
    """Raises: RunError naming the first line that is damaged, of which so many lie before these."""
    found: list[Json] = []
    for number, line in enumerate(whole.splitlines(), before + 1):
        try:
            said = _value(line)
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"Line {number} of {path} is no JSON ({error}). Look at the disk, or delete the line."
            ) from error
        if not isinstance(said, dict):
            raise RunError(
                f"Line {number} of {path} is {line[:40].decode(errors='replace')!r}; expected a JSON object. "
                "Look at the disk, or delete the line."
            )
        found.append(said)
    return found


def _value(line: bytes) -> Any:
    """What a line says. Raises: ValueError, RecursionError."""
    try:
        return QUICKLY.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # such as nan, and what is no JSON
        return PATIENTLY.decode(line.decode(errors="replace"))


def said_in(run: Path) -> Json:
    """Where the run stands by its summary.json, or else status.json; as much of it as can be read."""
    for name in ("summary.json", "status.json"):
        try:
            found = object_in(run / name)
        except OSError:
            continue
        if found:
            return {key: found[key] for key, kind in SAID.items() if isinstance(found.get(key), kind)}
    return {}


def object_in(path: Path) -> Json:
    """The object in a file; empty if it holds none that can be read. Raises: OSError."""
    with open(path, "rb", opener=plain_only) as file:
        data = file.read(MOST_SAID_BYTES)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def by_source(line: Mapping[str, Any]) -> Mapping[str, Any]:
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


def quiet_s(run: Path, now: float) -> float:
    """Seconds since the run wrote to its journal or status; 0 if it has not. `now`: seconds since 1970."""
    written: list[float] = []
    for name in GROWING:
        with suppress(OSError):  # the write-ahead log goes when the controller ends
            written.append((run / name).stat().st_mtime)
    return max(0.0, now - max(written, default=now))


def not_heard(quiet: float) -> list[Json]:
    """A controller that lives and writes nothing, in the form of an alarm; nothing if it writes."""
    if quiet < SILENT_S:
        return []
    evidence = f"it lives and has written nothing for {quiet:.0f} s, though it does every 10 s at least"
    remedy = "launch.py stacks RUN says where it stands, and so does the page Controls; is the machine busy?"
    return [{"name": "not heard", "owner": "controller", "evidence": evidence, "remedy": remedy}]


def columns_of(lines: Lines) -> dict[str, list[float | None]]:
    """By key, a number or nothing for each line; of many lines of metrics.jsonl thinned, see MetricLines."""
    if isinstance(lines, MetricLines):
        return lines.columns()
    keys = dict.fromkeys(key for line in lines for key, value in line.items() if is_number(value))
    return {key: [value if is_number(value := line.get(key)) else None for line in lines] for key in keys}


def at_most(line: Mapping[str, Any], key: str, most: int) -> bool:
    value = line.get(key)
    return isinstance(value, int) and value <= most


def is_number(value: object) -> bool:
    """Whether it can be drawn."""
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)
