"""Python stacks on request: on SIGUSR1, a process writes the stacks of all its threads to its log.

Invariant: the handler does not need the interpreter, so that a thread that hangs in C, or holds the GIL for
ever, is shown as well.
"""

import faulthandler
import signal
import sys
from collections.abc import Callable
from typing import TextIO

SIGNAL = signal.SIGUSR1


def dump_on_signal(file: TextIO | None = None) -> Callable[[], object] | None:
    """Have SIGUSR1 write all stacks to `file`, or to standard error.

    Returns a function that undoes it; None, and changes nothing, if the process handles the signal already.
    """
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return None
    faulthandler.register(SIGNAL, file=file or sys.stderr, all_threads=True)
    return lambda: faulthandler.unregister(SIGNAL)
