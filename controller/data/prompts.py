"""Where prompts come from: a JSONL file, a saved dataset, a function of the user's, or any iterable.

Invariants: the same configuration gives the same rows in the same order; a row that cannot be used is
refused with its place: one that is no text (half of a character) is left out and the others go on, any other
ends the run; no source is held in memory as a whole (a file is an index of byte offsets), and a file stays
open, so that a row needs no descriptor; nothing here knows of the event loop: `read` may block and is called
from a thread.
"""

import json
import os
import re
import traceback
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from controller.config.models import Config
from protocol.errors import ConfigError
from protocol.importing import load_object

SURROGATE = re.compile("[\ud800-\udfff]")
MAX_UNUSABLE = 1000  # rows in a row that are left out; then the source is none
TOLD = 10  # of them; then the 100th, the 1,000th...


class _NoText(ConfigError):
    """A row holds half of a character, which no file, journal or message can carry."""


class _Table(Protocol):
    """A source with random access."""

    def __len__(self) -> int: ...

    def row(self, index: int) -> tuple[str, object]:
        """The row, and its place in words."""
        ...


class PromptSource:
    """The rows of a run, one after the other, pass after pass."""

    def __init__(
        self,
        config: Config,
        iterable: Iterable[Mapping[str, Any]] | None = None,
        *,
        most: int | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        """Find the source; `iterable` takes the place of `data.path`; of a file, index the first `most` rows
        only.

        `on_refused(text)` hears, in the thread that reads, of a row that is left out; without it such a row
        is an error. Raises: ConfigError if there is no source.
        """
        self.is_end = False
        """No more rows will come. Known once `read` has returned fewer rows than asked for."""
        self._on_refused = on_refused
        self._refused: set[str] = set()
        self._unusable = 0  # rows that were left out since the last that was not
        self._data = config.data
        self._seed = config.run.seed
        self._is_supervised = config.trainer.is_supervised
        self._most = most
        self._rows = self._follow_iterable(iterable) if iterable is not None else self._open(config.data.path)

    def read(self, count: int) -> list[bytes]:
        """The next rows as JSON objects in UTF-8, at most `count`; fewer only at the end.

        Raises: ConfigError that names the row and what is wrong with it.
        """
        rows: list[bytes] = []
        while len(rows) < count and (found := next(self._rows, None)) is not None:
            try:
                rows.append(self._checked(*found))
                self._unusable = 0
            except _NoText as error:
                self._refuse(error)
        self.is_end = len(rows) < count
        return rows

    def _refuse(self, error: _NoText) -> None:
        self._unusable += 1
        if self._on_refused is None or self._unusable >= MAX_UNUSABLE:
            raise error
        if str(error) in self._refused or len(self._refused) >= 100 * MAX_UNUSABLE:
            return  # of an earlier pass
        self._refused.add(str(error))
        count = len(self._refused)
        if count <= TOLD or count == 10 ** (len(str(count)) - 1):
            self._on_refused(f"{error} The row is left out{f', as {count} are so far' * (count > 1)}.")

    def _open(self, path: str) -> Iterator[tuple[str, object]]:
        if not path:
            raise ConfigError(
                "No prompts: data.path is empty. Set it to a JSONL file, a folder saved by "
                "datasets.save_to_disk or an import path `file.py:prompts`, or pass `prompts=` to Controller."
            )
        if os.path.exists(path):
            table = _SavedDataset(path) if os.path.isdir(path) else _JsonLines(path, self._most)
            if not len(table):
                raise ConfigError(f"data.path is {path!r}, which has no rows; expected at least one.")
            return self._follow_table(table)
        if ":" not in path:
            raise ConfigError(
                f"data.path is {path!r}, and there is no such file or folder in {os.getcwd()}. Expected a "
                "JSONL file, a folder saved by datasets.save_to_disk, or an import path `file.py:prompts`."
            )
        return self._follow_function(load_object(path))

    def _passes(self) -> Iterator[int]:
        done = 0
        while self._data.epochs == 0 or done < self._data.epochs:
            yield done
            done += 1

    def _follow_table(self, table: _Table) -> Iterator[tuple[str, object]]:
        for epoch in self._passes():
            order: Iterable[int] = range(len(table))
            if self._data.shuffle:
                order = np.random.default_rng([self._seed, epoch]).permutation(len(table))
            for index in order:
                yield table.row(int(index))

    def _follow_iterable(self, iterable: Iterable[object]) -> Iterator[tuple[str, object]]:
        """An iterator is passed over once; what can be iterated again (a list) as often as data.epochs
        says."""
        number = 0
        for _ in self._passes():
            before = number
            for row in _in_words(iterable):
                number += 1
                yield f"prompt {number} of the iterable", row
            if number == before or iter(iterable) is iterable:
                return

    def _follow_function(self, make: Callable[..., Iterable[object]]) -> Iterator[tuple[str, object]]:
        """Each pass calls the function anew, with `seed` = run.seed + pass."""
        number = 0
        for epoch in self._passes():
            before = number
            try:
                rows = make(seed=self._seed + epoch)
            except (Exception, SystemExit) as error:  # whatever the user's code raises
                raise _failed(error) from error
            for row in _in_words(rows):
                number += 1
                yield f"prompt {number} of {self._data.path}", row
            if number == before:
                raise ConfigError(
                    f"{self._data.path!r} gave no prompts for seed {self._seed + epoch}; expected some."
                )

    def _checked(self, place: str, row: object) -> bytes:
        if not isinstance(row, Mapping):
            raise ConfigError(
                f"{place} is {type(row).__name__} {str(row)[:80]!r}; expected an object with a `prompt` "
                "column."
            )
        columns = self._data.columns
        missing = [source for source in columns.values() if source not in row]
        if missing:
            raise ConfigError(
                f"{place} has no column {missing[0]!r}, which data.columns names; it has "
                f"{sorted(map(str, row))}."
            )
        kept = {name: value for name, value in row.items() if name not in columns.values()}
        kept.update({name: row[source] for name, source in columns.items()})
        if self._is_supervised:
            kept = _with_response(place, kept)
        if not _is_prompt(kept.get("prompt")):
            hint = "Name the column that holds it: `data.columns: {prompt: question}`."
            was = (
                f"{str(kept['prompt'])[:80]!r} as `prompt`"
                if "prompt" in kept
                else f"columns {sorted(map(str, kept))}"
            )
            raise ConfigError(
                f"{place} has {was}; expected a `prompt` that is a string, or a list of messages with "
                f"`role` and `content`, not empty. {hint}"
            )
        try:
            return json.dumps(kept, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            raise _NoText(f"{place} {no_text(kept)}") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{place} cannot be written as JSON: {error}. Expected plain values."
            ) from error


def no_text(row: Mapping[str, object]) -> str | None:
    """What is wrong with a row that holds half of a character; None if it holds none."""
    for name, value in row.items():
        if found := SURROGATE.search(json.dumps([name, value], ensure_ascii=False, default=str)):
            return (
                f"has U+{ord(found[0]):04X} in {ascii(name)[1:-1]!r}, which is half of a character (a lone "
                "surrogate) and cannot be written as UTF-8; expected text. Mend it where the data is made."
            )
    return None


class _JsonLines:
    """A JSONL file as an index of where its lines begin: 16 bytes a row. Blank lines are no rows."""

    def __init__(self, path: str, most: int | None = None) -> None:
        self._path = path
        self._begins, self._numbers = array("Q"), array("Q")
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            self._file = open(descriptor, "rb", closefd=False)  # noqa: SIM115 - until nobody reads any more
            begin = 0
            for number, line in enumerate(self._file, 1):
                if not line.isspace():
                    self._begins.append(begin)
                    self._numbers.append(number)
                begin += len(line)
                if len(self._begins) == most:
                    break
        except OSError as error:
            raise ConfigError(f"data.path {path!r} cannot be read: {error.strerror}.") from error

    def __len__(self) -> int:
        return len(self._begins)

    def row(self, index: int) -> tuple[str, object]:
        place = f"{self._path}, line {self._numbers[index]}"
        self._file.seek(self._begins[index])
        line = self._file.readline()
        try:
            return place, json.loads(line.decode("utf-8-sig"))
        except ValueError as error:  # bad JSON and bad UTF-8 alike
            raise ConfigError(
                f"{place} is not JSON: {error}. Expected one JSON object per line, in UTF-8."
            ) from error


class _SavedDataset:
    """A folder that `datasets.Dataset.save_to_disk` wrote, memory-mapped by that library."""

    def __init__(self, path: str) -> None:
        try:
            import datasets  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            raise ConfigError(
                f"data.path {path!r} is a folder, and reading a saved dataset needs the package `datasets`. "
                "Install it (pip install -e '.[datasets]'), or write the prompts to a JSONL file."
            ) from error
        parts = Path(path) / "dataset_dict.json"
        if parts.exists():
            splits = json.loads(parts.read_text())["splits"]
            raise ConfigError(
                f"data.path {path!r} holds several splits; choose one: {path.rstrip('/')}/{splits[0]}."
            )
        try:
            self._dataset = datasets.load_from_disk(path)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"data.path {path!r} is not a folder that datasets.save_to_disk wrote: {error}. Give such a "
                "folder, or a JSONL file."
            ) from error
        self._path = path

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int) -> tuple[str, object]:
        return f"{self._path}, row {index}", self._dataset[index]


def _in_words(iterable: Iterable[object]) -> Iterator[object]:
    """The same rows; what the user's code raises on the way becomes a ConfigError with its traceback."""
    try:
        yield from iterable
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise _failed(error) from error


def _failed(error: BaseException) -> ConfigError:
    trace = "".join(traceback.format_exception(error))[-4000:]
    return ConfigError(f"The prompt source raised {type(error).__name__}: {error}. Mend it; where:\n{trace}")


def _with_response(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row with `prompt` and `response`; a conversation in `messages` is split before its last answer."""
    talk = row.get("messages")
    if _is_prompt(talk) and isinstance(talk, list):
        if len(talk) < 2 or talk[-1]["role"] != "assistant":
            roles = ", ".join(message["role"] for message in talk)
            raise ConfigError(
                f"{place} has `messages` of {roles}; expected a conversation that ends with an answer of the "
                "assistant, which is what is trained on. Leave the row out."
            )
        kept = {name: value for name, value in row.items() if name != "messages"}
        row = kept | {"prompt": talk[:-1], "response": talk[-1]["content"]}
    response = row.get("response")
    if not isinstance(response, str) or not response:
        raise ConfigError(
            f"{place} has {str(response)[:80]!r} as `response`; expected text, which `trainer.algorithm: "
            "sft` trains on. Name the column that holds it: `data.columns: {response: answer}`."
        )
    return row


def _is_prompt(value: object) -> bool:
    if isinstance(value, str):
        return bool(value)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) and "content" in m for m in value)
    )
