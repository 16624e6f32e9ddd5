"""Prints for a person what may quote a file or a worker: no word of theirs drives the terminal."""

import sys

from protocol.plain_text import plain


def say(text: str, *, is_error: bool = False) -> None:
    """Print a text without control characters, at once."""
    print(plain(text), file=sys.stderr if is_error else sys.stdout, flush=True)
