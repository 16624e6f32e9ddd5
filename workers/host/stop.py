"""Signals to a worker process, and a request to leave that comes over its link.

Invariant: the first drains, or cancels what comes before the work; a second signal ends the process.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

logger = logging.getLogger("workers")


class Stop:
    """How one worker process leaves."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._leave: Callable[[], object] = task.cancel
        self.is_leaving = False
        self.by = "a signal"  # or "the operator"
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    def use(self, drain: Callable[[], object]) -> None:
        """From now on a request to leave calls this."""
        self._leave = drain

    def on_request(self) -> None:
        """The controller asks, on behalf of an operator."""
        if not self.is_leaving:
            self.is_leaving, self.by = True, "the operator"
            logger.info("The controller asks this worker to hand back what is in hand, and to leave.")
            self._leave()

    def _on_signal(self, number: int) -> None:
        if self.is_leaving:
            logger.warning("A second signal: ending at once.")
            os._exit(128 + number)
        self.is_leaving = True
        logger.info("%s: handing back what is in hand, then leaving.", signal.Signals(number).name)
        self._leave()
