"""A limit of CPU time around one verdict, in the main thread of a process of a reward.

Invariants: what runs Python is interrupted by `OutOfTime`; what does not come back to Python, such as the
power of two large numbers, is ended by the kernel with its process, which the worker takes for what it is
(OutOfCpu); a machine that stands still uses nothing up.
"""

import math
import resource
import signal
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
AGAIN_S = 0.5
"""Until the next interruption, for code that catches everything."""


class OutOfTime(BaseException):
    """The limit has passed. No Exception, so that a library does not take it for an error of its own."""


def within(cpu_s: float, verdict: Callable[[], Result]) -> Result | None:
    """The verdict; None if it takes more than so many seconds of CPU time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    limits = _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    last_s = math.ceil(usage.ru_utime + usage.ru_stime + cpu_s) + 1
    last_s = last_s if hard == resource.RLIM_INFINITY else min(last_s, hard)
    before = signal.signal(signal.SIGPROF, _interrupt)
    resource.setrlimit(resource.RLIMIT_CPU, (last_s, hard))
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_s, AGAIN_S)
        try:
            return verdict()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except OutOfTime:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_CPU, limits)
        signal.signal(signal.SIGPROF, before)


def _interrupt(*_: object) -> None:
    raise OutOfTime
