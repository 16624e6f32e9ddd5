"""Waits for the first page of a view, so that a view that is never opened costs nothing.

A script, started without site packages: it imports the standard library alone, and is replaced by the view at
the first connection, or ends with the run. Requests wait in the listening socket meanwhile.

    doorkeeper.py LISTENER LIFE COMMAND...      both are numbers of open files
"""

import os
import select
import sys


def wait(listener: int, life: int) -> bool:
    """Wait; returns whether a page has connected, or false if the run has ended, which closes `life`."""
    ready, _, _ = select.select([listener, life], [], [])
    return life not in ready


def main(arguments: list[str]) -> int:
    """Become `COMMAND...` when a page is asked for."""
    listener, life, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    if wait(listener, life):
        os.execv(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
