"""All sources of a run: reads them by number, checks that they are unchanged, and resumes their positions.

Invariants: the rows of a source depend on how many were read from it, not on other sources; data that differs
from the data at the beginning of the run is refused before a row is read.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from controller.config.models import Config
from controller.data.fingerprints import difference
from controller.data.prompts import Cursor, PromptSource
from protocol.errors import ConfigError

READ_AT_ONCE = 1024  # prompts
SHOWN_CHARS = 120
KEY = re.compile(r"\bdata\.[a-z]")  # in words about one source, which name its keys as those of `data`
BEGIN_ANEW = (
    "bring the old data back and go on with the same command, set run.resume=never to start over, or begin "
    "a run of another name from the newest checkpoint (run.resume=RUN/checkpoints/step_N)"
)


class Sources:
    """The sources of a configuration, in its order; or an iterable in their place."""

    def __init__(
        self,
        config: Config,
        iterable: Iterable[Mapping[str, Any]] | None = None,
        *,
        known: str | None = None,
        on_refused: Callable[[str], object] | None = None,
    ) -> None:
        """Open all sources. `known`: `fingerprints` from the beginning of a resumed run.

        Raises: ConfigError that names the source and what is wrong with it, or how it has changed.
        """
        self._names: list[str] = []
        self._sources: list[PromptSource] = []
        found: list[Any] = []
        before = _as_written(known)
        each = config.data.each
        if iterable is not None:  # of a configured source its keys count, and no file of it is read
            each = [("data", each[0][1].model_copy(update={"path": ""}))]
        for number, (place, data) in enumerate(each):
            name = config.data.sources[number].name if config.data.sources else ""
            self._names.append(f"{place} ({name})" if name and iterable is None else place)
            was = before[number] if number < len(before) else None
            one = config.model_copy(update={"data": data})
            try:
                source = PromptSource(one, iterable, name=name, on_refused=on_refused)
                now = source.fingerprint
            except OSError as error:
                raise ConfigError(f"{data.path} cannot be read: {error.strerror}.") from error
            except ConfigError as error:
                raise ConfigError(self._in_place(number, f"{error}{_as_it_was(was)}")) from error
            if was is not None and now is not None and (changed := difference(was, now)):
                text = f"the data of the run has changed: {changed}. Expected it as it was: {BEGIN_ANEW}."
                raise ConfigError(self._in_place(number, text))
            self._sources.append(source)
            found.append(now)
        self.fingerprints = json.dumps(found)
        """Fingerprints of all sources, in JSON, for `known`."""

    @property
    def is_end(self) -> bool:
        """Whether no source will give more rows."""
        return all(source.is_end for source in self._sources)

    @property
    def cursors(self) -> str:
        """Positions of all sources, in JSON, for `take_up`; at its end a checksum."""
        places = [source.cursor for source in self._sources]
        return json.dumps([*places, _checksum(places)])

    def read(self, count: int, wanted: Sequence[int] = ()) -> tuple[list[bytes], tuple[int, ...]]:
        """The next `count` rows, fewer where a source ends, and the source of each.

        `wanted`: the source of each row, in this order; () reads from the first source and returns () for
        them.

        Raises: ConfigError that names the row and what is wrong with it.
        """
        if not wanted:
            return self._read(0, count), ()
        rows = {number: iter(self._read(number, wanted.count(number))) for number in sorted(set(wanted))}
        pairs = [(row, number) for number in wanted if (row := next(rows[number], None)) is not None]
        return [row for row, _ in pairs], tuple(number for _, number in pairs)

    def take_up(
        self,
        read: Sequence[int],
        known: Mapping[tuple[int, int], bytes],
        cursors: str | None,
        *,
        ended: Sequence[bool] = (),
    ) -> None:
        """Go on behind the first `read` rows of each source, from the positions `cursors` where possible.

        `known`: rows that the run still needs, by source and number in it. Cursors that have changed on the
        disk are not used. `ended`: whether each of several sources had ended; such a one is not read again.
        Raises: ConfigError if a source gives other rows than before, or fewer.
        """
        places = _whole(cursors)
        for number, source in enumerate(self._sources):
            place = places[number] if number < len(places) else None
            begin = 0
            if place is not None and source.cursor is not None and place[0] <= read[number]:
                source.seek(Cursor(*place))
                begin = place[0]
            rows = {row: text for (one, row), text in known.items() if one == number}
            try:
                advance(source, read[number], rows, begin=begin)
            except ConfigError as error:
                raise ConfigError(self._in_place(number, str(error))) from error
            source.is_end |= number < len(ended) and ended[number]

    def _read(self, number: int, count: int) -> list[bytes]:
        try:
            return self._sources[number].read(count)
        except ConfigError as error:
            raise ConfigError(self._in_place(number, str(error))) from error

    def _in_place(self, number: int, text: str) -> str:
        name = self._names[number]
        if name == "data":
            return text
        return f"{name}, called `data` here: {text}" if KEY.search(text) else f"{name}: {text}"


def _as_written(known: str | None) -> list[Any]:
    """The fingerprints of a resumed run. Raises: ConfigError if they have changed on the disk."""
    try:
        return json.loads(known) if known else []
    except (ValueError, TypeError):
        raise ConfigError(
            "What run.db says of the run's data has changed since it was written, so nobody can tell whether "
            f"the data is as it was. Expected run.db as the run wrote it: {BEGIN_ANEW}."
        ) from None


def _whole(cursors: str | None) -> list[Any]:
    """The positions in `Sources.cursors`; none if they have changed. An older release wrote no checksum."""
    try:
        places: list[Any] = json.loads(cursors) if cursors else []
    except (ValueError, TypeError):
        return []
    if places and isinstance(places[-1], int):
        *places, checksum = places
        return places if checksum == _checksum(places) else []
    return places


def _checksum(places: Sequence[Any]) -> int:
    return crc32(json.dumps(places).encode())


def advance(prompts: PromptSource, count: int, known: Mapping[int, bytes], *, begin: int = 0) -> None:
    """Read past the first `count` prompts, of which `begin` were read already.

    `known`: rows that the run still needs, by number.

    Raises: ConfigError if the source gives other rows than before, or fewer.
    """
    number = begin
    while number < count:
        rows = prompts.read(min(READ_AT_ONCE, count - number))
        for group, row in enumerate(rows, number):
            if known.get(group, row) != row:
                raise ConfigError(
                    f"Prompt {group} was {_shown(known[group])} when the run began, and is now "
                    f"{_shown(row)}. Expected the same prompts in the same order: bring the old "
                    "data back, or set run.resume=never to start over. If the data has not changed, another "
                    "release has shaped the rows: finish the run with the one that began it "
                    "(docs/durability.md)."
                )
        number += len(rows)
        if prompts.is_end and number < count:
            raise ConfigError(
                f"The run has read {count} prompts, and its source ends after {number} now. Expected the "
                "same prompts as before: bring the old data back, or set run.resume=never to start over."
            )


def _as_it_was(was: Mapping[str, Any] | None) -> str:
    if was is None:
        return ""
    sizes = ", ".join(f"{path} with {size:,} bytes" for path, (size, _) in list(was["files"].items())[:3])
    what = f" in {sizes}" if sizes else ""
    return f" When the run began it had {was['rows']:,} rows{what}: {BEGIN_ANEW}."


def _shown(row: bytes) -> str:
    text = row.decode(errors="replace")
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
