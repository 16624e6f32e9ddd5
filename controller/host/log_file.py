"""Logs of a run: the controller's, and those of its processes.

Only the run's user may read them, as they quote prompts and responses.
"""

import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from protocol.files import exists, for_owner_only
from protocol.plain_text import plain
from protocol.stacks import dump_on_signal

LAST_WORDS_LINES = 15  # of the log of a process that has ended, in a message
LAST_WORDS_BYTES = 8192


class OwnersLog(logging.FileHandler):
    """A log that only its owner may read, from its first byte on."""

    _is_told = False  # whether the disk has refused a line

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=for_owner_only)

    def handleError(self, record: logging.LogRecord) -> None:
        """Tell in one sentence that the disk refuses lines, the first time; other errors as logging does."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_told and sys.stderr is not None:
            self._is_told = True
            with suppress(OSError):  # nobody reads any more
                print(f"warning: {self.baseFilename} lacks lines: {error.strerror}.", file=sys.stderr)

    def close(self) -> None:
        """Close it; what a full disk did not take is lost, as `handleError` has told."""
        with suppress(OSError):
            super().close()


class ProcessLog:
    """The log of one process, in a file that may begin with the logs of its predecessors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = path.stat().st_size if exists(path) else 0

    def open(self) -> IO[bytes]:
        """Open it for appending; readable only by the run's user, as it quotes prompts and responses.

        A folder of logs that was removed under the run is made again: no worker fails for want of it.
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        return open(self.path, "ab", opener=for_owner_only)

    def last_words(self) -> str:
        """The end of it, or why that cannot be read."""
        try:
            with open(self.path, "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, end - LAST_WORDS_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"(its log cannot be read: {error})"
        return plain("\n".join(lines[-LAST_WORDS_LINES:]))


_run_of_context: ContextVar[object] = ContextVar("run of this log", default=None)
_logs: dict[object, OwnersLog] = {}
"""Logs of the current runs of this process, by the value of `_run_of_context`."""


def log_to_file(path: Path, *, level: str, stack: ExitStack) -> None:
    """Write what the controller logs to this file, too, until `stack` closes.

    The caller's context belongs to this run from now on, as do tasks, callbacks and threads that copy it.
    Records of other runs of this process are left out; records of no run go to the log of each run. Stacks
    dumped on a signal go to the log of the run that began last.
    """
    handler, run = OwnersLog(path), object()
    stack.callback(handler.close)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(level.upper())
    handler.addFilter(lambda _: (current := _run_of_context.get()) is run or current not in _logs)
    _logs[run] = handler
    _run_of_context.set(run)
    root = logging.getLogger("staleflow")
    root.setLevel(min(log.level for log in _logs.values()))
    root.addHandler(handler)
    stack.callback(_leave, run, dump_on_signal(handler.stream))


def _leave(run: object, forget: Callable[[], object] | None) -> None:
    logging.getLogger("staleflow").removeHandler(_logs.pop(run))
    if forget is not None and _logs:
        dump_on_signal(list(_logs.values())[-1].stream)
    elif forget is not None:
        forget()
