"""logs/controller.log of a run, readable only by the run's user, as it quotes prompts and responses."""

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path

from protocol.files import for_owner_only
from protocol.stacks import dump_on_signal


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
