"""Run by tests/support/prepared_program.py in a forked process: STDIN PROGRAM ARGUMENTS."""

import os
import runpy
import socket
import subprocess
import sys
import threading

from setproctitle import setproctitle

from controller.host import forks

DESCRIPTORS = 3  # the door of the server, and where its output and errors go
SERVER = "workers.host.fork_server"


class ForkedServer:
    """The process of a fork server, used as a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._one_waits = threading.Lock()

    def poll(self) -> int | None:
        return self._look(os.WNOHANG) if self._one_waits.acquire(blocking=False) else None

    def wait(self) -> int:
        self._one_waits.acquire()
        code = self._look(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, 9)

    def _look(self, options: int) -> int | None:
        try:
            if self._code is None:
                ended, status = os.waitpid(self.pid, options)
                self._code = os.waitstatus_to_exitcode(status) if ended else None
            return self._code
        finally:
            self._one_waits.release()


class Prepared:
    """Stands for the module `subprocess` where a fork server is started: the first one is there already."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            ours.close()
            serve(theirs, parent)
        theirs.close()
        self._socket: socket.socket | None = ours

    def Popen(self, command, *, stdout, stderr, pass_fds, **options):
        if self._socket is None:
            return subprocess.Popen(command, stdout=stdout, stderr=stderr, pass_fds=pass_fds, **options)
        with self._socket:
            socket.send_fds(self._socket, [b"c"], [*pass_fds, stdout.fileno(), stderr.fileno()])
        self._socket = None
        return ForkedServer(self._pid)


def serve(asked: socket.socket, parent: int) -> None:
    """Be the fork server of the process `parent`, once it asks for one; ends the process."""
    os.setsid()
    with asked:
        said, descriptors, _, _ = socket.recv_fds(asked, 1, DESCRIPTORS)
    if not said:  # it has ended without
        os._exit(0)
    door, *written = descriptors
    for place, descriptor in enumerate(written, 1):
        os.dup2(descriptor, place)
        os.close(descriptor)
    sys.argv = [SERVER, str(door), f"--parent={parent}"]
    setproctitle(" ".join([sys.executable, "-P", "-m", *sys.argv]))
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


def main() -> None:
    stdin, program, *arguments = sys.argv[1:]
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    forks.subprocess = Prepared()
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, "")
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


main()
