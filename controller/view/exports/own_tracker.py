"""A tracker of the user's, whose answers are checked.

Invariants: it gets lines of its own, so that what it does to them reaches no other tracker and no alarm; one
that is made wrongly, or answers with a coroutine and so has done nothing, is refused in a sentence.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from protocol.blame import shown
from protocol.errors import ConfigError

METHODS = ("begin", "step", "close")
EXPECTED = "expected an object with begin(lines), step(line) and close(), plain functions that may wait"


class OwnTracker:
    """The object that the user's function has made."""

    def __init__(self, name: str, made: Any) -> None:
        """`name`: the import path of the function. Raises: ConfigError if that is no tracker."""
        self._name, self._made = name, made
        if missing := [each for each in METHODS if not callable(getattr(made, each, None))]:
            self._refuse(made, f"made {shown(made)}, which has no {', '.join(missing)}")

    def begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Have a record of these steps and of no others. Raises: what the tracker raises."""
        self._take("begin", self._made.begin(LinesOfItsOwn(lines)))

    def step(self, line: Mapping[str, Any]) -> None:
        """One step more. Raises: what the tracker raises."""
        self._take("step", self._made.step(_copy(line)))

    def close(self) -> None:
        """End in good order. Raises: what the tracker raises."""
        self._take("close", self._made.close())

    def _take(self, method: str, answer: object) -> None:
        if inspect.isawaitable(answer):
            self._refuse(answer, f"has a {method} that answers {shown(answer)}, so nobody has run it")

    def _refuse(self, answer: object, how: str) -> None:
        if inspect.iscoroutine(answer):
            answer.close()  # else Python warns that it was never awaited
        raise ConfigError(f"logging.trackers: {self._name} {how}; {EXPECTED}.")


class LinesOfItsOwn(Sequence[dict[str, Any]]):
    """Lines of which each is copied when it is asked for, so that none is held."""

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_copy, self._lines)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        found = self._lines[place]
        return _copy(found) if isinstance(found, Mapping) else [*map(_copy, found)]


def _copy(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in line.items()}
