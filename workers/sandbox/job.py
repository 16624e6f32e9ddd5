"""A sandbox's job and its outcome.

Invariant: pure. An outcome is about the program; a fault of the sandbox, or a malformed answer, is
SandboxBroken.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Backend = Literal["bubblewrap", "limits"]
Limit = Literal["", "cpu", "wall", "memory", "processes", "output", "file"]


class SandboxBroken(Exception):
    """The sandbox could not run a program, which is not at fault; the text is for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """The limits of one program."""

    cpu_s: float = 10.0
    """Seconds of CPU time, of all its processes together."""
    wall_s: float = 30.0
    memory_mb: int = 1024
    """Per process: address space. In total: resident memory, each shared page counted once.

    Under bubblewrap the possible content of sockets counts, too.
    """
    processes: int = 32
    """Processes and threads at once."""
    output_bytes: int = 4 << 20
    """Of standard output, and of standard error."""
    file_mb: int = 16
    """Per file; under bubblewrap also for the program's whole folder."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run: a file of `workers/sandbox/inside`, its orders, and its standard input."""

    script: str
    """The name of that file, without `.py`."""
    orders: Mapping[str, Any]
    """The input of the script as JSON; nothing that must be hidden from the program."""
    stdin: bytes = b""
    limits: ProgramLimits = field(default_factory=ProgramLimits)


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How a program ended."""

    code: int
    """Exit code; below 0, the signal that ended it, negated."""
    limit: Limit = ""
    """The limit that ended it; "" if none."""
    stdout: bytes = b""
    stderr: bytes = b""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    """Largest memory seen, counted like the total for `memory_mb`."""
    waited_s: float = 0.0
    """Seconds for which it was ready to run without a core."""

    @property
    def ended_well(self) -> bool:
        """Whether it ran to its end with exit code 0."""
        return self.code == 0 and not self.limit

    @property
    def in_words(self) -> str:
        """How it ended, as part of a sentence."""
        if self.limit:
            return f"used up its limit `{self.limit}` after {self.cpu_s:.1f} s of CPU and {self.wall_s:.1f} s"
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


def header_of(text: bytes, *, most_bytes: int) -> dict[str, Any]:
    """The JSON header of an answer; its `lengths` are the bytes of standard output and standard error.

    Raises: SandboxBroken if it is malformed, or more than `most_bytes` of either follow.
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
    """The outcome in a supervisor's answer. Raises: SandboxBroken if it reports that, or is malformed."""
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
