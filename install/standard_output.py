"""Ends a command with a message, not a traceback, if its output cannot be written; opens closed streams.

Invariants: standard library only; errors that standard output did not raise are left alone; a closed pipe is
no error: its reader needs no more output.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

STREAMS = ("stdin", "r"), ("stdout", "w"), ("stderr", "w")


def open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that were closed (`<&-`, `>&-`), for child processes too.

    Else a socket would take the place, and libuv ends the process that closes one there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(STREAMS):
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def told_if_refused() -> Iterator[None]:
    """A context that flushes stdout at its end; if that fails, it ends the process with 1 and a message."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # `>&-` closed it
                sys.stdout.flush()
    except OSError as error:
        if sys.stdout is None or not _is_refused():
            raise
        print_to_nothing(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            with contextlib.suppress(OSError):
                sys.stderr.write(
                    f"What this command prints cannot be written: {error.strerror}. Expected a standard "
                    "output with room; free some where it goes, or send it elsewhere, and start again.\n"
                )
                sys.stderr.flush()
        sys.exit(1)


def _is_refused() -> bool:
    """Whether standard output cannot be written; else the error is of another file."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def drop_unwritten(stream: TextIO) -> None:
    """Drop output that a full disk has not taken: else the interpreter ends with exit code 120."""
    try:
        stream.flush()
    except OSError:
        print_to_nothing(stream)


def print_to_nothing(stream: TextIO) -> None:
    """Send further output of a standard stream, also of child processes, to /dev/null.

    Else the interpreter fails at its end, when it flushes output that it cannot write.
    """
    with contextlib.suppress(OSError, ValueError):  # it may be no file
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
