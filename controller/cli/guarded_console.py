"""A console whose reader may go away, while the run goes on.

Invariants: what cannot be written is dropped, and said once in the controller's log; where nobody will ever
read again (`| tee` that has ended, a terminal that was closed), nothing more is tried, and what the process
and its children still print goes nowhere.
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from controller.cli.console import Console, Metrics
from controller.cli.say import READER_IS_GONE
from install.standard_output import print_to_nothing

log = logging.getLogger("staleflow.controller")


class GuardedConsole:
    """Hands on to a console, and raises nothing that the file system or a terminal says."""

    def __init__(self, console: Console, *, on_gone: Callable[[], None] | None = None) -> None:
        """`on_gone` is called once, when nobody reads any more; by default it points stdout at nothing."""
        self._console = console
        self._on_gone = on_gone or (lambda: print_to_nothing(sys.stdout))
        self._is_gone = self._was_told = False

    def progress(self, fraction: float | None, text: str) -> None:
        """As of a console."""
        self._try(lambda: self._console.progress(fraction, text))

    def step(self, metrics: Metrics) -> None:
        """As of a console."""
        self._try(lambda: self._console.step(metrics))

    def evaluation(self, metrics: Metrics) -> None:
        """As of a console."""
        self._try(lambda: self._console.evaluation(metrics))

    def warn(self, text: str) -> None:
        """As of a console."""
        self._try(lambda: self._console.warn(text))

    def note(self, text: str) -> None:
        """As of a console."""
        self._try(lambda: self._console.note(text))

    def finish(self, summary: Metrics, run_dir: Path) -> None:
        """As of a console."""
        self._try(lambda: self._console.finish(summary, run_dir))

    def close(self) -> None:
        """As of a console: rich has put itself in the place of stdout and stderr until then."""
        self._try(self._console.close, also_if_gone=True)

    def _try(self, tell: Callable[[], None], *, also_if_gone: bool = False) -> None:
        if self._is_gone and not also_if_gone:
            return
        try:
            tell()
        except OSError as error:
            if not self._was_told:
                self._was_told = True
                log.warning("The console cannot be written to (%s); the run goes on without it.", error)
            if error.errno in READER_IS_GONE and not self._is_gone:
                self._is_gone = True
                self._on_gone()
