"""Prints for a person what may quote a file or a worker: no word of theirs drives the terminal."""

import errno
import sys

from install.standard_output import print_to_nothing
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
