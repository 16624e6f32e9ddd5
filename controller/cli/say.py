"""Prints for a person what may quote a file or a worker: no word of theirs drives the terminal."""

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

from protocol.plain_text import plain

READER_IS_GONE = (errno.EPIPE, errno.EIO)


def say(text: str, *, is_error: bool = False) -> None:
    """Print a text without control characters, at once.

    `is_error`: to stderr, and if it cannot be written there, nothing is raised: how a command ends does not
    depend on who listens. Raises: OSError if stdout cannot be written.
    """
    try:
        print(plain(text), file=sys.stderr if is_error else sys.stdout, flush=True)
    except OSError as error:
        if not is_error:
            raise
        if error.errno in READER_IS_GONE:
            print_to_nothing(sys.stderr)


def print_to_nothing(stream: TextIO) -> None:
    """Let what is still printed to a standard stream, also by child processes, go nowhere.

    Else the interpreter would fail at its end, on what it has not got rid of.
    """
    with suppress(OSError, ValueError):  # it may be no file
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
