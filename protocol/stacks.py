"""The Python stacks of a process on request: SIGUSR1 writes those of all threads to its log.

Invariant: nothing of the interpreter is needed for it, so that a thread that hangs in C, or holds the
interpreter's lock for ever, is shown as well.
"""

import faulthandler
import signal
import sys
from collections.abc import Callable
from typing import TextIO

SIGNAL = signal.SIGUSR1


def dump_on_signal(file: TextIO | None = None) -> Callable[[], object] | None:
    """From now on SIGUSR1 writes all stacks to `file`, or to standard error.

    Returns what takes it back; None, and nothing is changed, if the process has a use of its own for the
    signal.
    """
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return None
    faulthandler.register(SIGNAL, file=file or sys.stderr, all_threads=True)
    return lambda: faulthandler.unregister(SIGNAL)
