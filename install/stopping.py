"""What Ctrl-C, SIGTERM and SIGHUP do while something is installed.

Invariants: standard library only; the first signal ends the installation and no later one disturbs what is
tidied up then, until the process ends; a signal that was ignored before, as by nohup, stays ignored.
"""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Stopping:
    """A context in which the first signal raises KeyboardInterrupt, and later ones do nothing.

    Without a signal, the handlers from before are back when it is left. After one, the process is to end.
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
        # while none can come: Python prints a traceback for one that comes just as it is to be ignored
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._before)
        try:
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_IGN if self._has_come else handler)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """A context whose end a signal waits for: what was begun in it can be ended by then."""
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
