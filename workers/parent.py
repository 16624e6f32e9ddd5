"""Ties a process to the life of the one that started it, so that none is orphaned by a SIGKILL of its
parent."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread of `parent` that started it ends, and end at once if
    that has happened already. Linux only; elsewhere, nothing."""
    if sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the kernel knew; somebody else's child by now
        os._exit(1)
