"""Handles Ctrl-C, SIGTERM and SIGHUP during an installation.

Invariants: standard library only; the first signal ends the installation, and later ones do not disturb the
cleanup; a signal that was ignored before, as by nohup, stays ignored.
"""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Stopping:
    """A context in which the first signal raises KeyboardInterrupt, and later ones do nothing.

    Without a signal, the previous handlers are restored at the end. After one, the process has to end.
    """

    def __init__(self) -> None:
        self._has_come = self._is_put_off = False
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self._before = {
            number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)
        }

    def __enter__(self) -> "Stopping":
        for number in self._before:
            signal.signal(number, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        # blocked meanwhile: Python prints a traceback for a signal that arrives just as it is set to ignored
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_IGN if self._has_come else handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """A context that postpones signals to its end, so that whatever was started in it can be ended."""
        self._is_put_off = True
        try:
            yield
        finally:
            self._is_put_off = False
        if self._has_come:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        if self._has_come:
            return
        self._has_come = True
        if not self._is_put_off:
            raise KeyboardInterrupt
