"""Trackers: programs that get the lines of metrics.jsonl, each step once.

Invariants: a tracker gets every step once and in order; one that begins (after a crash too) is given all
lines that there are, and makes its own record of them; one that fails or hangs is told once and left behind,
and no other one notices. What is `step` before what it has got, as after a redone step, makes it begin again.
No line is held longer than until it was given: those of a run of weeks are gigabytes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, NamedTuple, Protocol, cast

from controller.config.models import TRACKERS
from controller.view.exports.own_tracker import OwnTracker
from protocol.errors import ConfigError
from protocol.importing import load_object

BUILT_IN = TRACKERS
MOST_CHARS = 1_000  # of what a tracker has raised
Line = dict[str, Any]
Tell = Callable[[str], None]
Steps = AbstractContextManager[Sequence[Line]]


class Tracker(Protocol):
    """The interface of a tracker, which a user's `make(run, config, run_id)` returns."""

    def begin(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Have a record of these steps and of no others."""
        ...

    def step(self, line: Mapping[str, Any]) -> None:
        """One step more."""
        ...

    def close(self) -> None:
        """End in good order."""
        ...


def make_tracker(name: str, run: Path, config: Mapping[str, Any], run_id: str) -> Tracker:
    """A built-in tracker, or what the function at `module:name` or `file.py:name` makes.

    Raises: ConfigError if there is none, it made no tracker, or its package is not installed.
    """
    try:
        if name == "tensorboard":
            from controller.view.exports.tensorboard import TensorBoard

            return TensorBoard(run, config, run_id)
        if name == "wandb":
            from controller.view.exports.wandb import Wandb

            return Wandb(run, config, run_id)
        return OwnTracker(name, _found(name)(run, deepcopy(config), run_id))
    except ImportError as error:
        raise ConfigError(
            f"logging.trackers: {name} needs a package that is not installed ({error}); pip install it."
        ) from error


def _found(name: str) -> Callable[..., Any]:
    if ":" not in name:
        raise ConfigError(
            f"logging.trackers: there is no tracker {name!r}; expected one of {', '.join(BUILT_IN)}, or "
            "module:function or file.py:function."
        )
    made: Any = load_object(name)
    if not callable(made):
        raise ConfigError(f"logging.trackers: {name} is a {type(made).__name__}, no function.")
    return cast("Callable[..., Any]", made)


class Sending:
    """One tracker in a thread of its own."""

    def __init__(
        self, name: str, make: Callable[[], Tracker], *, tell: Tell, again: Callable[[int], Steps]
    ) -> None:
        """`tell(text)` hears once why it goes no further; `again(end)` gives the steps before `end`."""
        self.name = name
        self._make, self._tell, self._again = make, tell, again
        self._queue: Queue[_Piece | None] = Queue()
        self._is_ended = self._has_all = False  # nothing more is sent; all that was sent is taken
        self._thread = Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, lines: list[Line], *, is_anew: bool, end: int = 0) -> None:
        """These are next, up to the byte `end`; `is_anew`: they are all that there are."""
        self._queue.put(_Piece(lines, is_anew, end))

    def begin_again(self, end: int) -> None:
        """More came than is held: all up to the byte `end` is in the file."""
        self._queue.put(_Piece(None, False, end))

    def end(self) -> None:
        """Nothing more will be sent."""
        if not self._is_ended:
            self._is_ended = True
            self._queue.put(None)

    def finish(self, within_s: float) -> bool:
        """Whether it has taken all and closed in time; nothing more will be sent."""
        self.end()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._follow(self._make())
        except (Exception, SystemExit) as error:  # somebody else's: it must not reach the others
            cause = f"{type(error).__name__}: {str(error)[:MOST_CHARS].rstrip('.')}"
            self._tell(
                f"The tracker {self.name} gets nothing more: {cause}. The run goes on; "
                f"`launch.py export RUN --to {self.name}` sends all of it later."
            )
            while not self._has_all and self._queue.get() is not None:
                pass

    def _follow(self, tracker: Tracker) -> None:
        last: int | None = None  # step that it has got; None: it has not begun
        while (piece := self._queue.get()) is not None:
            while True:  # what has piled up is taken at once
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    self._queue.put(None)
                    break
                piece = piece.with_next(more)
            if piece.lines is None:
                last = self._begun_again(tracker, piece.end)
                continue
            fresh = [line for line in piece.lines if isinstance(line.get("step"), int)]
            if piece.is_anew or last is None:
                last = _begun(tracker, by_step(fresh))
            elif any(line["step"] <= last for line in fresh):
                last = self._begun_again(tracker, piece.end)
            else:
                for line in fresh:
                    tracker.step(line)
                    last = line["step"]
        self._has_all = True
        tracker.close()

    def _begun_again(self, tracker: Tracker, end: int) -> int:
        with self._again(end) as known:
            return _begun(tracker, known)


class _Piece(NamedTuple):
    """What is next."""

    lines: list[Line] | None  # None: all of the file, up to `end`
    is_anew: bool  # these lines are all that there are
    end: int  # of the file, in bytes

    def with_next(self, more: "_Piece") -> "_Piece":
        """Both in one."""
        if more.is_anew or more.lines is None or self.lines is None:
            return more if more.is_anew else _Piece(None, False, more.end)
        return _Piece(self.lines + more.lines, self.is_anew, more.end)


def _begun(tracker: Tracker, known: Sequence[Line]) -> int:
    """The last step of those that it has begun with."""
    tracker.begin(known)
    return known[-1]["step"] if known else 0


def by_step(lines: list[Line]) -> list[Line]:
    """Those of steps, in order; of a step that was redone the later one."""
    found = {line["step"]: line for line in lines if isinstance(line.get("step"), int)}
    return [found[step] for step in sorted(found)]
