"""Ends a command whose output cannot be written in words, not in a traceback.

Invariants: standard library only; an error that standard output did not raise is left alone; nobody is told
that a reader has gone, who wanted no more.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


@contextlib.contextmanager
def told_if_refused() -> Iterator[None]:
    """A context left with all written; else the process ends with 1, and a line on stderr says why."""
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
    """Whether standard output takes nothing: the error may be of any other file."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def drop_unwritten(stream: TextIO) -> None:
    """Let what a full disk has not taken go nowhere: the interpreter would end with 120 for it."""
    try:
        stream.flush()
    except OSError:
        print_to_nothing(stream)


def print_to_nothing(stream: TextIO) -> None:
    """Let what is still printed to a standard stream, also by child processes, go nowhere.

    Else the interpreter would fail at its end, on what it has not got rid of.
    """
    with contextlib.suppress(OSError, ValueError):  # it may be no file
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
