"""Waits for the first page of a view, so that one that nobody opens costs nothing.

A script, started without site packages: it imports the standard library alone, and becomes the view when
somebody connects, or ends with the run. What was asked meanwhile waits in the listening socket.

    doorkeeper.py LISTENER LIFE COMMAND...      both are numbers of open files
"""

import os
import select
import sys


def wait(listener: int, life: int) -> bool:
    """Whether somebody has connected; false if the run has ended: nobody holds the other end of `life`."""
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
