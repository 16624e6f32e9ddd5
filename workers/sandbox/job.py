"""What is asked of a sandbox, and what it answers.

Invariant: pure. An answer is about the program; what is wrong with the sandbox, or is no answer, is
SandboxBroken.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Backend = Literal["bubblewrap", "limits"]
Limit = Literal["", "cpu", "wall", "memory", "processes", "output", "file"]


class SandboxBroken(Exception):
    """The sandbox could not run a program, for no fault of that; the text is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What one program may use."""

    cpu_s: float = 10.0
    """Seconds of CPU, of all its processes together."""
    wall_s: float = 30.0
    memory_mb: int = 1024
    """Of one process: address space. Of all together: resident memory, each shared page counted once, and
    under bubblewrap what their sockets may hold."""
    processes: int = 32
    """Processes and threads side by side."""
    output_bytes: int = 4 << 20
    """Standard output, and standard error likewise."""
    file_mb: int = 16
    """One file; under bubblewrap also all that is in the program's folder together."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run: a file of `workers/sandbox/inside`, its orders, and what it reads."""

    script: str
    """The name of that file, without `.py`."""
    orders: Mapping[str, Any]
    """What the file is told, as JSON; nothing that a program must not know."""
    stdin: bytes = b""
    limits: ProgramLimits = field(default_factory=ProgramLimits)


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How a program ended."""

    code: int
    """Exit code; below 0, the signal that ended it, negated."""
    limit: Limit = ""
    """The limit that ended it; "": none."""
    stdout: bytes = b""
    stderr: bytes = b""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    """Most memory that was seen, counted as for `memory_mb` of all together."""
    waited_s: float = 0.0
    """Seconds for which it could have run, and had no core to run on."""

    @property
    def ended_well(self) -> bool:
        """Whether it ran to its end with exit code 0."""
        return self.code == 0 and not self.limit

    @property
    def in_words(self) -> str:
        """What ended it, as a piece of a sentence."""
        if self.limit:
            return f"used up its limit `{self.limit}` after {self.cpu_s:.1f} s of CPU and {self.wall_s:.1f} s"
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


def header_of(text: bytes, *, most_bytes: int) -> dict[str, Any]:
    """The JSON in front of an answer; its `lengths` are the bytes of standard output and standard error.

    Raises: SandboxBroken if it is none, or says that more than `most_bytes` of either follow.
    """
    try:
        header = json.loads(text)
        lengths = header["lengths"]
        is_one = len(lengths) == 2 and all(type(size) is int and 0 <= size <= most_bytes for size in lengths)
    except (ValueError, TypeError, KeyError, RecursionError):
        is_one = False
    if not is_one:
        raise _no_outcome(text)
    return header


def outcome_of(header: Mapping[str, Any], stdout: bytes, stderr: bytes) -> ProgramOutcome:
    """The answer of a supervisor. Raises: SandboxBroken if it says that, or is no answer."""
    if "broken" in header:
        raise SandboxBroken(str(header["broken"]))
    try:
        if header["limit"] not in get_args(Limit):
            raise _no_outcome(header)
        return ProgramOutcome(
            int(header["code"]), header["limit"], stdout, stderr,
            *(float(header[name]) for name in ("cpu_s", "wall_s", "peak_mb", "waited_s")),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError):
        raise _no_outcome(header) from None


def _no_outcome(answer: object) -> SandboxBroken:
    return SandboxBroken(f"The sandbox answered {answer!r:.200}, which is no outcome. Nothing was scored.")
