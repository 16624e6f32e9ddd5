"""Limits the CPU time of one verdict, in the main thread of a reward process.

Invariants: Python code is interrupted by `OutOfTime`; code that does not return to Python, such as the power
of two large numbers, is ended by the kernel with its process, which the worker reports as OutOfCpu; a machine
that stands still uses up no CPU time.
"""

import math
import resource
import signal
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
AGAIN_S = 0.5
"""Until the next interruption, for code that catches every exception."""


class OutOfTime(BaseException):
    """The limit has passed. Not an Exception, so that libraries do not catch it as an error of their own."""


def within(cpu_s: float, verdict: Callable[[], Result]) -> Result | None:
    """The verdict; None if it takes more than `cpu_s` seconds of CPU time."""
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
