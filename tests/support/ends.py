"""The end of a process that is not, or need not be, a child of the test: also if it has ended already.

A pid is looked at once. Whoever has ended before, and was waited for, is nobody: that is an end, too.
"""

import os
import select

LIMIT_S = 300


def end_of(pid: int) -> int | None:
    """A descriptor that can be read once the process has ended; None: it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def has_ended(pid: int, *, limit_s: float = LIMIT_S) -> bool:
    """Whether the process ends before so many seconds are over; one that is a zombie has ended."""
    descriptor = end_of(pid)
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], limit_s)[0])
    finally:
        os.close(descriptor)
