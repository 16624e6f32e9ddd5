"""File descriptors: how many this process may have open, and how to tell that none are left.

The soft limit, 1,024 almost everywhere, protects programs that use `select`; ours do not. So each of our
processes begins by raising it to the hard limit, and its children inherit that.
"""

import errno
import resource
from pathlib import Path
from typing import NamedTuple

NR_OPEN = Path("/proc/sys/fs/nr_open")  # the number that "unlimited" stands for
OWN = 64  # of a controller at work: 32 were seen, and for a moment 6 more per worker that it starts
RETRY_S = 0.5  # between two tries while no descriptors are left


class DescriptorLimit(NamedTuple):
    """How many descriptors this process may have open."""

    now: int
    before: int  # it was raised

    @property
    def strangers(self) -> int:
        """Connections without a key that may wait at once: a quarter, and no more than memory is worth."""
        return max(8, min(4096, self.now // 4))

    @property
    def workers(self) -> int:
        """How many workers a controller has room for beside as many strangers as may knock."""
        return max(0, self.now - OWN - self.strangers)

    def in_words(self) -> str:
        """A sentence for the log and for `check`."""
        raised = f" (the soft limit was {self.before:,})" if self.before != self.now else ""
        words = f"{self.now:,} files and connections may be open{raised}: enough for {self.workers:,} workers"
        return f"{words}, and {self.strangers:,} connections that have shown no key."


def limit() -> DescriptorLimit:
    """The limit that `raise_limit` would set, without setting it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        try:
            hard = int(NR_OPEN.read_text())
        except (OSError, ValueError):
            hard = soft
    return DescriptorLimit(hard if soft == resource.RLIM_INFINITY else max(soft, hard), soft)


def raise_limit() -> DescriptorLimit:
    """Raise the soft limit to the hard one; returns the new limit."""
    wanted = limit()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted.now, hard))
    except (ValueError, OSError):  # a system that allows less than it says
        return DescriptorLimit(wanted.before, wanted.before)
    return wanted


def are_spent(error: OSError) -> bool:
    """Whether an error means that process or machine have no descriptors left: a later try may succeed."""
    return error.errno in (errno.EMFILE, errno.ENFILE)
