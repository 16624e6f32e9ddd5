"""Forks a supervisor for each program, which is quicker than starting a new Python.

`python -m workers.sandbox.warden DESCRIPTOR`, a socket to the client. Invariants: it runs no program's code
and holds no secret; when the client closes the socket or ends, all programs end. A message is one byte, with
descriptors: the request as a file, the socket for the answer, standard input, and perhaps a socket for the
program.
"""

import json
import os
import signal
import socket
import sys
import traceback

from workers.link.parent import die_with_parent
from workers.sandbox.supervisor import supervise

MOST_DESCRIPTORS = 4


def main() -> None:
    """Serve until the socket is closed."""
    die_with_parent(os.getppid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    asker = socket.socket(fileno=int(sys.argv[1]))
    me = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(asker, 1, MOST_DESCRIPTORS)
        if not message:
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # Python leaves received ones open for every program
        if not os.fork():
            asker.close()
            _serve(me, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _serve(warden: int, descriptors: list[int]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, reply, stdin, *channel = descriptors
        with open(request, encoding="utf-8") as file:
            order = json.load(file)
        supervise(order | {"warden": warden}, socket.socket(fileno=reply), stdin, *channel or [-1])
        code = 0
    except BaseException:  # in this fork: logged, and answered by a closed socket
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
