"""Reads the rows of one source: a file, a dataset, a function of the user's, or any iterable.

Invariants: the same configuration gives the same rows in the same order; an unusable row is reported with its
place: a row that is empty or cannot be carried (half of a character, nan) is left out, any other ends the
run; no source is held in memory as a whole; this module does not know the event loop: `read` may block and is
called from a thread.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from controller.config.models import Config
from controller.data.fingerprints import Fingerprint
from controller.data.formats import EXPECTED, format_of, open_table
from controller.data.iterables import why_no_rows
from controller.data.rows import RowShape, UnusableRow
from controller.data.tables import Table
from protocol.blame import where
from protocol.errors import ConfigError
from protocol.importing import load_object

MAX_UNUSABLE = 1000  # rows in a row that may be left out; then the run ends
TOLD = 10  # rows left out, each with a warning; then the 100th, the 1,000th...
LOOKED_THROUGH = 1_000_000  # rows in a row of an iterable that filters may leave out; then it is refused


class Cursor(NamedTuple):
    """Position of a source: the number of rows that it has given, and the next row of its table."""

    given: int = 0  # rows
    done: int = 0  # passes
    position: int = 0  # in the pass


class PromptSource:
    """Reads the rows of one source, pass after pass."""

    def __init__(
        self,
        config: Config,
        iterable: Iterable[Mapping[str, Any]] | None = None,
        *,
        name: str = "",
        most: int | None = None,
        is_held_out: bool = False,
        on_refused: Callable[[str], object] | None = None,
    ) -> None:
        """Open the source; `iterable` takes the place of `data.path`.

        `most`: index only the first rows of a text file; it is then no error if filters leave none of them.
        `name`: the column `source` of each row. `is_held_out`: nothing is trained on its rows.
        `on_refused(text)` is called, in the thread that reads, for a row that is left out; without it such a
        row is an error. Raises: ConfigError if there is no source.
        """
        self.is_end = False
        """Whether no more rows will come; known once `read` has returned fewer rows than asked for."""
        self._on_refused = on_refused
        self._refused: set[str] = set()
        self._unusable = 0  # rows in a row that were left out
        self._data = config.data
        self._seed = config.run.seed
        self._table: Table | None = None
        self._is_beginning = most is not None  # only the first rows are indexed
        self._given = self._unfiltered = self._filtered = 0  # rows so far; the last: in a row
        self._pass = self._position = 0  # of the next row of a table
        if iterable is not None:
            self._rows = self._follow_iterable(iterable)
        elif _is_function(config.data.path):
            self._rows = self._follow_function(load_object(config.data.path))
        else:
            self._table = self._open(most)
            self._rows = self._follow_table(self._table)
        self._shape = RowShape(
            config.data, source=name, is_supervised=config.trainer.is_supervised, is_held_out=is_held_out,
            is_for_agent=config.agent.is_on, is_padded=self._table is not None and self._table.is_padded,
        )  # fmt: skip

    def read(self, count: int) -> list[bytes]:
        """The next rows as JSON objects in UTF-8, at most `count`; fewer only at the end.

        Raises: ConfigError that names the row and what is wrong with it.
        """
        rows: list[bytes] = []
        while len(rows) < count and (found := next(self._rows, None)) is not None:
            try:
                row = self._shape.shaped(*found)
            except UnusableRow as error:
                self._unfiltered += 1
                self._refuse(error)
                continue
            if row is not None:
                rows.append(row)
                self._unusable = self._filtered = 0
                self._given, self._unfiltered = self._given + 1, self._unfiltered + 1
            elif self._table is None:
                self._count_filtered()
        self.is_end = len(rows) < count
        return rows

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The fingerprint of the source; None if it is no table. Raises: OSError."""
        return None if self._table is None else self._table.fingerprint()

    @property
    def cursor(self) -> Cursor | None:
        """The position of the source, for `seek`; None if it is no table."""
        return None if self._table is None else Cursor(self._given, self._pass, self._position)

    def seek(self, cursor: Cursor) -> None:
        """Go on from the position of an equal source, without reading the rows before."""
        assert self._table is not None
        self._given, self._pass, self._position = cursor
        self._rows = self._follow_table(self._table)

    def _refuse(self, error: UnusableRow) -> None:
        self._unusable += 1
        if self._on_refused is None or self._unusable >= MAX_UNUSABLE:
            raise error
        if str(error) in self._refused or len(self._refused) >= 100 * MAX_UNUSABLE:
            return  # of an earlier pass
        self._refused.add(str(error))
        count = len(self._refused)
        if count <= TOLD or count == 10 ** (len(str(count)) - 1):
            self._on_refused(f"{error} The row is left out{f', as {count} are so far' * (count > 1)}.")

    def _open(self, most: int | None) -> Table:
        path = self._data.path
        if not path:
            raise ConfigError(
                f"No prompts: data.path is empty. Set it to {EXPECTED}, or pass `prompts=` to Controller."
            )
        table = open_table(self._data, most)
        if not len(table):
            raise ConfigError(f"data.path is {path!r}, which has no rows; expected at least one.")
        return table

    def _passes(self, done: int = 0) -> Iterator[int]:
        while self._data.epochs == 0 or done < self._data.epochs:
            yield done
            done += 1

    def _follow_table(self, table: Table) -> Iterator[tuple[str, object]]:
        """Rows from the current position on. Raises: ConfigError after a whole pass that gave no row."""
        for number in self._passes(self._pass):
            self._pass = number
            is_whole, before = not self._position, self._unfiltered
            seed = [self._seed, self._pass] if self._data.shuffle else None
            for found in table.walk(self._position, seed):
                self._position += 1
                yield found
            self._pass, self._position = number + 1, 0  # else one resumed here reads the pass again
            if is_whole and self._unfiltered == before and not self._is_beginning:
                raise self._left_nothing(len(table))

    def _count_filtered(self) -> None:
        """Count a filtered row of a source that may never end. Raises: ConfigError after too many."""
        self._filtered += 1
        if self._filtered > LOOKED_THROUGH:
            raise self._left_nothing(self._filtered)

    def _left_nothing(self, count: int) -> ConfigError:
        return ConfigError(
            f"None of {count:,} rows of {self._data.path or 'the iterable'} is left by its `where`, "
            "`min_chars` and `max_chars`; expected at least one. Loosen them."
        )

    def _follow_iterable(self, iterable: Iterable[object]) -> Iterator[tuple[str, object]]:
        """Rows of an iterable: an iterator is read once, a list `data.epochs` times."""
        number = 0
        for _ in self._passes():
            before = number
            for row in _in_words(iterable):
                number += 1
                yield f"prompt {number} of the iterable", row
            if not number:
                raise ConfigError("`prompts` has no rows; expected at least one.")
            if number == before or iter(iterable) is iterable:
                return

    def _follow_function(self, make: Callable[..., Iterable[object]]) -> Iterator[tuple[str, object]]:
        """Rows of a function, which each pass calls again with `seed` = run.seed + pass."""
        number = 0
        for epoch in self._passes():
            before = number
            try:
                rows = make(seed=self._seed + epoch)
            except (Exception, SystemExit) as error:  # whatever the user's code raises
                raise _failed(error) from error
            if problem := why_no_rows(rows):
                raise ConfigError(f"data.path: {where(make)} returned {problem}")
            for row in _in_words(rows):
                number += 1
                yield f"prompt {number} of {self._data.path}", row
            if number == before:
                raise ConfigError(
                    f"{self._data.path!r} gave no prompts for seed {self._seed + epoch}; expected some."
                )


def _in_words(iterable: Iterable[object]) -> Iterator[object]:
    """The same rows; an error of the user's code becomes a ConfigError with its traceback."""
    try:
        yield from iterable
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise _failed(error) from error


def _failed(error: BaseException) -> ConfigError:
    trace = "".join(traceback.format_exception(error))[-4000:]
    return ConfigError(f"The prompt source raised {type(error).__name__}: {error}. Mend it; where:\n{trace}")


def _is_function(path: str) -> bool:
    try:
        return format_of(path)[0] == "function"
    except OSError:  # opening it says what is wrong
        return False
