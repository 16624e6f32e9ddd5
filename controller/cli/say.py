"""Prints texts that may quote files or workers, without their control characters."""

import errno
import sys

from install.standard_output import print_to_nothing
from protocol.plain_text import plain

READER_IS_GONE = (errno.EPIPE, errno.EIO)


def say(text: str, *, is_error: bool = False) -> None:
    """Print a text without control characters, at once.

    `is_error`: print to stderr, and raise nothing if that fails, so that the exit code does not depend on the
    reader. Raises: OSError if stdout cannot be written.
    """
    try:
        print(plain(text), file=sys.stderr if is_error else sys.stdout, flush=True)
    except OSError as error:
        if not is_error:
            raise
        if error.errno in READER_IS_GONE:
            print_to_nothing(sys.stderr)
