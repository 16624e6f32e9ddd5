"""Runs a program, and ends all processes that it has started.

`python -m workers.children.program PYTHONPATH PROGRAM ARGUMENTS...` forks: the child becomes the program, in
its own session and with this PYTHONPATH, the parent waits. Invariants: when the program ends, or this process
gets SIGTERM, all processes that the program has started are ended, also those in another session or without
their parent; this process ends with the program's status.
"""

import os
import signal
import sys

from workers.link.descendants import adopt_orphans, kill_and_reap, reap
from workers.link.parent import die_with_parent

CANNOT_START = 127
WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}


def main() -> None:
    """Run the program; never returns."""
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    keeper = os.getpid()
    child = os.fork()
    if not child:
        _become(sys.argv[2:], keeper, python_path=sys.argv[1])
    status = None
    while status is None:
        if signal.sigwait(WATCHED) != signal.SIGCHLD:
            break
        status = reap(child)
    rest = kill_and_reap(child)
    code = os.waitstatus_to_exitcode(status if status is not None else rest or 0)
    os._exit(code if code >= 0 else 128 - code)  # the convention of shells


def _become(argv: list[str], keeper: int, *, python_path: str) -> None:
    os.environ["PYTHONPATH"] = python_path
    os.setsid()  # a program that signals its process group is not to hit its keeper
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    die_with_parent(keeper)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]} cannot be started: {error.strerror}.", file=sys.stderr, flush=True)
        os._exit(CANNOT_START)


if __name__ == "__main__":
    main()
