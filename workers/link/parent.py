"""Ties a process to the life of its parent, so that a SIGKILL of the parent leaves no orphans."""

import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel kill this process when the thread of `parent` that started it ends.

    `number` is the signal; if the thread has ended already, the process ends at once. Only on Linux.
    """
    if sys.platform != "linux":
        return
    _signal_at_death_of(parent, number)


def outlive_parent(parent: int, on_death: Callable[[], None], *, limit_s: float) -> None:
    """Call `on_death` when `parent` exits, and exit at most `limit_s` seconds later.

    `on_death` is called in its own thread, also in a process that was stopped when the parent ended: it is
    continued. If `parent` is gone already, the process ends at once, as it has no work yet. If the kernel has
    no pidfd (before Linux 5.3), the function does nothing.
    """
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:  # it has ended and was reaped: no event will come
        os._exit(1)
    except (AttributeError, OSError):
        return

    def mourn() -> None:
        select.select([descriptor], [], [])
        try:
            on_death()
        except Exception:  # whatever it raises, such as of a loop that is closed, this process has to end
            traceback.print_exc()
        time.sleep(limit_s)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=mourn, name="parent", daemon=True).start()
    _signal_at_death_of(parent, signal.SIGCONT)


@contextmanager
def ending_with(parent: int) -> Iterator[None]:
    """Inside, this process ends at once when `parent` does; no thread is left on return, as before a fork.

    Raises: ProcessLookupError if `parent` is gone already; OSError.
    """
    descriptor = os.pidfd_open(parent)
    over, ends = os.pipe()

    def wait() -> None:
        if descriptor in select.select([descriptor, over], [], [])[0]:
            os._exit(1)

    thread = Thread(target=wait, name="parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(ends)
        thread.join()
        os.close(over)
        os.close(descriptor)


def _signal_at_death_of(parent: int, number: signal.Signals) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the call took effect
        os._exit(1)
