"""A program that says a line and waits until it was heard: it cannot outpace who kills it.

`say` is for the program, `heard` for the test. Between the words that the test waits for and the signal that
the test sends, the program does nothing at all, however late the test is.
"""

import asyncio
import sys

from tests.support.prepared_program import PreparedProcess

LIMIT_S = 300


def say(text: str) -> None:
    """Say it, and stop the whole program until the test has heard it."""
    print(text, flush=True)
    sys.stdin.readline()


async def heard(program: PreparedProcess, words: str) -> None:
    """Let the program go on until it says a line with these words, and stop it there."""
    async with asyncio.timeout(LIMIT_S):
        while words not in (line := (await program.stdout.readline()).decode()):
            assert line, f"the program has ended and never said {words!r}"
            program.stdin.write(b"\n")
