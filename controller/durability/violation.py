"""A core that breaks one of its invariants: which one, and where the check found it.

Invariant: looking changes nothing; whatever a check raises counts, since a core that is broken may break the
check, too.
"""

from pathlib import Path
from traceback import extract_tb, format_exception
from typing import NamedTuple

from controller.core.core import Core
from controller.core.liveness import check_liveness
from protocol.errors import RunError


class Violation(NamedTuple):
    """What does not hold."""

    words: str  # with the file and line that say it
    place: str  # that file and line: of one release, the name of the invariant
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
    """What the core breaks; None if it keeps all its invariants.

    `is_strict`: a run that stands still breaks one from the event on that brought it there, with no grace.
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
