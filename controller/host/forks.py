"""The controller's side of the fork server: worker processes that need not import torch again.

Invariants: one server per controller process, started when a run first asks for it and kept for those that
follow; it ends by itself a minute after the last one, and with the process; each run has a socket of its own,
with which its processes end; what the server cannot do is told as `ForkServerLost`, and is done without it.
"""

import asyncio
import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from protocol.errors import StaleFlowError
from protocol.settings import RolloutSettings, TrainerSettings

COMMAND = (sys.executable, "-P", "-m", "workers.host.fork_server")
ACCELERATORS = (Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/kfd"))
AT_IMPORT = ("CUDA", "HF_", "LD_", "PYTHON", "PYTORCH", "TORCH", "TRANSFORMERS")
"""How the variables begin that libraries read when they are imported; another value is another server."""
EACH_ITS_OWN = ("PYTHONPATH",)
THROUGH = b"0"
LAST_WORDS_BYTES = 2000
MAX_ANSWER_BYTES = 4096


class ForkServerLost(StaleFlowError):
    """The server has ended, or has never begun; its last words are the text."""


class ForkedProcess:
    """A process that the server has forked; like one of `asyncio.subprocess`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """The exit code, negative for a signal; it stands for everybody who asks."""
        return await asyncio.shield(self._ended)

    def end(self, code: int) -> None:
        """The server, or its end, has told."""
        if not self._ended.done():
            self._ended.set_result(code)


class Forks:
    """The processes that one run has forked."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment` is that of the server, if there is none yet.

        Raises: OSError if it cannot be started."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._server = _server_of(environment)
        except OSError:
            self._socket.close()
            theirs.close()
            raise
        with theirs, suppress(ConnectionError):  # if it has ended since, that is heard below
            socket.send_fds(self._server.door, [b"c"], [theirs.fileno()])
        self._socket.setblocking(False)
        self._one_at_a_time = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        """Requests that were not answered, by number; who made one may be gone."""
        self._count = 0
        self._processes: dict[int, ForkedProcess] = {}
        self._is_lost = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._hear)

    @property
    def parent(self) -> int:
        """The pid of the process that forks."""
        return self._server.process.pid

    async def start(
        self, command: Sequence[str], environment: Mapping[str, str], *, output: int, error: int
    ) -> ForkedProcess:
        """Fork a process that runs a Python command line, without the interpreter, in a session of its own.

        `output` and `error` are descriptors. Raises: ForkServerLost, then and ever after; OSError if the
        machine has no room for another process now.
        """
        asked = {"command": list(command), "environment": dict(environment), "folder": os.getcwd()}
        async with self._one_at_a_time:
            if self._is_lost:
                raise self._lost()
            self._count += 1
            try:
                self._ask(json.dumps(asked), output, error)
            except ConnectionError:
                raise self._lost() from None
            answer = self._asked[self._count] = self._loop.create_future()
            return await answer

    def _ask(self, text: str, output: int, error: int) -> None:
        with os.fdopen(os.memfd_create("asked"), "wb") as file, open(os.devnull, "rb") as nothing:
            file.write(text.encode())
            file.flush()
            number = str(self._count).encode()
            socket.send_fds(self._socket, [number], [file.fileno(), nothing.fileno(), output, error])

    def close(self) -> None:
        """Leave the server, which ends what still runs."""
        self._loop.remove_reader(self._socket.fileno())
        with suppress(OSError):  # it has ended
            self._socket.send(THROUGH)
        self._socket.close()
        self._server.clients -= 1
        self._give_up()

    def _hear(self) -> None:
        try:
            said = self._socket.recv(MAX_ANSWER_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            said = b""
        if not said:
            self._loop.remove_reader(self._socket.fileno())
            self._give_up()
            return
        answer = json.loads(said)
        asked = self._asked.pop(answer["number"], None)
        if "refused" in answer:
            if asked is not None and not asked.done():
                asked.set_exception(OSError(answer["refused"], os.strerror(answer["refused"])))
            return
        if "forked" in answer:
            self._begin(answer["forked"], asked)
            return
        if answer["ended"] not in self._processes:  # before it could say that it had begun
            self._begin(answer["ended"], asked)
        self._processes.pop(answer["ended"]).end(answer["code"])

    def _begin(self, pid: int, asked: asyncio.Future[ForkedProcess] | None) -> None:
        process = self._processes[pid] = ForkedProcess(pid)
        if asked is None or asked.done():  # who asked was cancelled meanwhile
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        else:
            asked.set_result(process)

    def _give_up(self) -> None:
        """The server is gone, and the kernel has ended what it had forked, or is about to."""
        self._is_lost = True
        for pid, process in self._processes.items():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            process.end(-signal.SIGKILL)
        self._processes.clear()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(self._lost())
        self._asked.clear()

    def _lost(self) -> ForkServerLost:
        words = self._server.last_words()
        return ForkServerLost(f"The process that forks workers has ended. Its last words: {words or 'none.'}")


class _Server:
    """The one of this process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.owner = os.getpid()
        self.clients = 0
        self.kind = _kind(environment)
        self.door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._words = ""  # the last ones, once the log is closed
        self._log = os.fdopen(os.memfd_create("words of the server"), "ab", 0)
        with theirs:
            self.process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), f"--parent={self.owner}"],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=dict(environment),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self.process.wait, name="fork server", daemon=True).start()  # it may end idle

    def last_words(self) -> str:
        """The end of what it has written; "" if that is nothing."""
        if self._log.closed:
            return self._words
        size = os.fstat(self._log.fileno()).st_size  # it is read in place: the server writes at its own end
        words = os.pread(self._log.fileno(), LAST_WORDS_BYTES, max(0, size - LAST_WORDS_BYTES))
        return words.decode(errors="replace").strip()

    def close(self) -> None:
        self.door.close()
        self.process.kill()
        self.process.wait()
        self._words = self.last_words()  # a run that it has served may still ask for them
        self._log.close()


_servers: list[_Server] = []  # of each kind that is in use
_change = threading.Lock()


def _server_of(environment: Mapping[str, str]) -> _Server:
    """The one to fork from, for one more client."""
    with _change:
        kind = _kind(environment)
        for server in tuple(_servers):
            if server.owner != os.getpid():  # this process is a fork of its owner
                _servers.remove(server)
            elif server.process.poll() is not None or (server.kind != kind and not server.clients):
                _servers.remove(server)
                server.close()
        server = next((server for server in _servers if server.kind == kind), None)
        if server is None:
            _servers.append(server := _Server(environment))
        server.clients += 1
        return server


def _kind(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(AT_IMPORT) and name not in EACH_ITS_OWN
    }


@atexit.register
def _close() -> None:
    for server in _servers:
        if server.owner == os.getpid():
            server.close()
    _servers.clear()


def may_fork(settings: RolloutSettings | TrainerSettings) -> bool:
    """Whether a worker of these settings is as good when it is forked.

    It is on Linux, with an engine of ours, where torch finds no accelerator: a driver that one process has
    begun to use is of no use to its forks.
    """
    is_on_cpu = settings.device == "cpu" or (settings.device == "auto" and not has_accelerator())
    return sys.platform == "linux" and settings.engine in ("torch", "fsdp") and is_on_cpu


def has_accelerator() -> bool:
    """Whether this machine has one, which functions of reward and agent workers may use."""
    return any(path.exists() for path in ACCELERATORS)
