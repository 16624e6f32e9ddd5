"""A console that survives the loss of its reader, so that the run goes on.

Invariants: lines that cannot be written are dropped, with one warning in the controller's log; once the
reader is gone for good (`| tee` that has ended, a closed terminal), nothing more is written, and the output
of the process and its children goes to /dev/null."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from controller.cli.console import Console, Metrics
from controller.cli.say import READER_IS_GONE
from install.standard_output import print_to_nothing

log = logging.getLogger("staleflow.controller")


class GuardedConsole:
    """Passes calls on to a console, and raises none of its OSErrors."""

    def __init__(self, console: Console, *, on_gone: Callable[[], None] | None = None) -> None:
        """`on_gone` is called once, when the reader is gone; by default it sends stdout to /dev/null."""
        self._console = console
        self._on_gone = on_gone or (lambda: print_to_nothing(sys.stdout))
        self._is_gone = self._was_told = False

    def progress(self, fraction: float | None, text: str) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.progress(fraction, text))

    def step(self, metrics: Metrics) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.step(metrics))

    def evaluation(self, metrics: Metrics) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.evaluation(metrics))

    def warn(self, text: str) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.warn(text))

    def note(self, text: str) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.note(text))

    def finish(self, summary: Metrics, run_dir: Path) -> None:
        """As the method of `Console`."""
        self._try(lambda: self._console.finish(summary, run_dir))

    def close(self) -> None:
        """As `Console.close`; also without a reader, as rich replaces stdout and stderr until then."""
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
