"""Checks the invariants of a core: which one is broken, and where the check found it.

Invariant: a check changes nothing; any exception in a check counts as a violation, since a broken core may
break the check, too.
"""

from pathlib import Path
from traceback import extract_tb, format_exception
from typing import NamedTuple

from controller.core.core import Core
from controller.core.liveness import check_liveness
from protocol.errors import RunError


class Violation(NamedTuple):
    """An invariant that does not hold."""

    words: str  # what is broken, with the file and line of the check
    place: str  # that file and line: within one release, they name the invariant
    trace: str  # the traceback of the check


class BrokenInvariant(RunError):
    """A run ends because its core breaks an invariant after event `number`."""

    def __init__(self, words: str, number: int) -> None:
        super().__init__(
            f"The core breaks an invariant after event {number}: {words}. This is a bug, and no snapshot of "
            "such a core is kept: the same command goes back to before the event at fault, and leaves it out "
            "once. Please report it with run.db and logs/controller.log."
        )
        self.number = number


def violation_of(core: Core, *, is_strict: bool = False) -> Violation | None:
    """Check the core; None if it keeps all its invariants.

    `is_strict`: report a run that stands still from the first such event on, without a time of grace.
    """
    try:
        core.check()
        if is_strict:
            check_liveness(core, grace_s=0.0)
    except Exception as error:
        frame = extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, line {frame.lineno}"
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        trace = "".join(format_exception(error))
        return Violation(f"{kind}{error or frame.line} ({place})", place, trace)
    return None
