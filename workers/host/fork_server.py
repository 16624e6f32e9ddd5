"""Forks the worker processes of one machine from a process that has imported what they need.

`python -P -m workers.host.fork_server DESCRIPTOR --parent PID`. Importing torch and transformers takes a
worker some five seconds of a core, and as much again for every further worker; a fork has both at once, and
shares their memory. The idea is that of `multiprocessing.forkserver`; this server runs the very command lines
that would otherwise be executed, each in a session of its own, and reports their exit codes.

DESCRIPTOR is a socket on which the parent passes further sockets, one per client (a run). A client requests a
process by a packet of a number with four descriptors: a file with a `ForkRequest` as JSON, and standard
input, output and error of the new process. Answers are JSON packets with that `number`: `{"forked": pid}`
from the new process, once it has its own session, `{"ended": pid, "code": exit code, negative for a signal}`,
and `{"refused": errno}` if the machine has no room for another process, or for its files. A client leaves by
sending 0.

Invariants: this process has one thread, no event loop and no device, so a fork of it is as good as a new
process; it ends with its parent, while it imports too, or after a minute without clients; when a client
leaves, its processes are killed; a forked process is killed by the kernel when this process ends, unless it
has asked for another signal (workers/link/parent.py): a client that ends with the parent sends nothing, and
its workers hand over their unfinished work.
"""

import argparse
import errno
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn, TypedDict

from setproctitle import setproctitle

from protocol.wire.descriptors import raise_limit
from workers.link.parent import die_with_parent, ending_with

MODULES = (
    "uvloop",
    "workers.host.serve",
    "workers.models.prepare",
    "workers.rollout.worker",
    "workers.engines.torch.engine",
    "workers.trainer.worker",
    "workers.reward.worker",
    "workers.agent.worker",
)
RENEWAL = "workers.models.renewal"  # by name, like all modules that forks share
IDLE_S = 60.0
DESCRIPTORS = 4  # of a request: its text, and the three standard ones
MAX_NUMBER_BYTES = 20  # of a request
PARENTS_END_S = 2.0  # from the end of its sockets to its own


class ForkRequest(TypedDict):
    """A command line, without the interpreter, and where it is run."""

    command: list[str]
    environment: dict[str, str]
    folder: str


class Forked(BaseException):
    """Raised in a new process, to leave the server's code."""

    def __init__(self, asked: ForkRequest) -> None:
        super().__init__(asked["command"])
        self.asked = asked


class ForkServer:
    """The sockets of the server, and the processes of each client."""

    def __init__(self, door: socket.socket, parent: int) -> None:
        self._door = door
        self._parent, self._pid = os.pidfd_open(parent), os.getpid()
        self._clients: dict[socket.socket, dict[int, int]] = {}  # pids, with the numbers of their requests
        self._wake, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler, the number is written below
        signal.set_wakeup_fd(wakes)
        self._wakes = wakes
        self._selector = selectors.DefaultSelector()
        for waited in (door, self._parent, self._wake):
            self._selector.register(waited, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the parent leaves, or no client comes. Raises: Forked, in every new process."""
        while True:
            ready = self._selector.select(None if self._clients else IDLE_S)
            if not ready and not self._clients:
                return
            for key, _ in ready:
                if key.fileobj == self._parent:
                    return
                if key.fileobj == self._wake:
                    with suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                    self._reap()
                elif key.fileobj is self._door:
                    if not self._let_in():
                        return
                elif isinstance(key.fileobj, socket.socket) and not self._hear(key.fileobj):
                    return

    def _let_in(self) -> bool:
        """Accept a new client; False if the parent has closed its socket."""
        said, descriptors, _, _ = socket.recv_fds(self._door, 1, 1)
        for descriptor in descriptors:
            client = socket.socket(fileno=descriptor)
            self._clients[client] = {}
            self._selector.register(client, selectors.EVENT_READ)
        return bool(said)

    def _hear(self, client: socket.socket) -> bool:
        """Handle a client's request; False if the parent has ended."""
        try:
            said, descriptors, _, _ = socket.recv_fds(client, MAX_NUMBER_BYTES, DESCRIPTORS)
        except ConnectionError:
            said, descriptors = b"", []
        number = int(said) if said else 0
        if not number:
            if not said and self._is_parent_ending():
                return False
            self._dismiss(client)
            return True
        if len(descriptors) < DESCRIPTORS:  # the kernel drops those for which this process has no room
            for descriptor in descriptors:
                os.close(descriptor)
            self._tell(client, number, {"refused": errno.EMFILE})
            return True
        text, *standard = descriptors
        with os.fdopen(text, "rb") as file:
            file.seek(0)  # the place is that of who has written it
            asked: ForkRequest = json.load(file)
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(client, number, {"refused": error.errno or errno.EAGAIN})
            pid = -1
        if not pid:
            self._leave(client, number, standard)
            raise Forked(asked)
        for descriptor in standard:
            os.close(descriptor)
        if pid > 0:
            self._clients[client][pid] = number
        return True

    def _is_parent_ending(self) -> bool:
        """Whether a client that sent nothing has ended with the parent, whose sockets close first."""
        return bool(select.select([self._parent], [], [], PARENTS_END_S)[0])

    def _leave(self, client: socket.socket, number: int, standard: Sequence[int]) -> None:
        """In the new process: make a session, report it, and close everything of the server."""
        die_with_parent(self._pid)
        os.setsid()
        self._tell(client, number, {"forked": os.getpid()})
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, descriptor in enumerate(standard):
            os.dup2(descriptor, place)
            os.close(descriptor)
        self._selector.close()
        for each in self._clients:
            each.close()
        self._door.close()
        for descriptor in (self._parent, self._wake, self._wakes):
            os.close(descriptor)

    def _reap(self) -> None:
        for client, pids in list(self._clients.items()):
            for pid in tuple(pids):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    self._tell(client, pids.pop(pid), {"ended": pid, "code": code})

    def _tell(self, client: socket.socket, number: int, what: dict[str, int]) -> None:
        with suppress(ConnectionError):  # it has left: its processes are ended when that is read
            client.send(json.dumps({"number": number, **what}).encode())

    def _dismiss(self, client: socket.socket) -> None:
        for pid in self._clients.pop(client):
            with suppress(ProcessLookupError):  # it has not had its own session yet, or all is over
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._selector.unregister(client)
        client.close()


def run(asked: ForkRequest) -> None:
    """Run this command line as Python does with `-m MODULE` or a script."""
    setproctitle(" ".join([sys.executable, *asked["command"]]))  # it looks at the environment of old
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    given = filter(None, asked["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys([*given, *sys.path])  # in this order: ours first, then the user's
    importlib.import_module(RENEWAL).renew()
    command = asked["command"][asked["command"][0] == "-P" :]
    if command[0] == "-m":
        sys.argv = command[1:]
        warnings.filterwarnings("ignore", "'workers.* found in sys.modules", RuntimeWarning)  # it is meant to
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def main() -> NoReturn:
    """Run the server; ends the process."""
    parser = argparse.ArgumentParser(prog="python -m workers.host.fork_server", description=__doc__)
    parser.add_argument("descriptor", type=int, help="socket on which clients are handed over")
    parser.add_argument("--parent", type=int, required=True, help="pid of the process that it ends with")
    options = parser.parse_args()
    raise_limit()
    server = ForkServer(socket.socket(fileno=options.descriptor), options.parent)
    with ending_with(options.parent):  # importing takes seconds, on a machine with other work many
        for module in (*MODULES, RENEWAL):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector of a fork would copy every page that it looks at
    try:
        server.serve()
    except Forked as forked:
        asked = forked.asked
    else:
        sys.exit(0)
    del server
    run(asked)
    sys.exit(0)


if __name__ == "__main__":
    main()
