"""Signals to a worker process, and requests to leave that come over its link.

Invariants: the first signal drains, or cancels the start-up; a second one ends the process. A closed terminal
(SIGHUP) is never the second, as the kernel and the shell may both say so; under nohup it is ignored.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

logger = logging.getLogger("workers")


class Stop:
    """Handles signals and requests to leave."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._leave: Callable[[], object] = task.cancel
        self.is_leaving = False
        self.by = "a signal"  # or "the operator"
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hang_up)

    def use(self, drain: Callable[[], object]) -> None:
        """Call this on a request to leave from now on."""
        self._leave = drain

    def on_request(self) -> None:
        """Leave at the request of the controller, on behalf of an operator."""
        if not self.is_leaving:
            self.is_leaving, self.by = True, "the operator"
            logger.info("The controller asks this worker to hand back what is in hand, and to leave.")
            self._leave()

    def _on_hang_up(self) -> None:
        if not self.is_leaving:
            self._on_signal(signal.SIGHUP)

    def _on_signal(self, number: int) -> None:
        if self.is_leaving:
            logger.warning("A second signal: ending at once.")
            os._exit(128 + number)
        self.is_leaving = True
        logger.info("%s: handing back what is in hand, then leaving.", signal.Signals(number).name)
        self._leave()
