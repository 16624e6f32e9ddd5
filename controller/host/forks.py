"""The controller's side of the fork server: forks worker processes that need not import torch again.

Invariants: one server per controller process and environment, started when a run first needs it and kept for
later runs; it ends a minute after the last run, and with the controller; each run has a socket of its own,
whose end kills the run's processes; a lost server raises `ForkServerLost`, and workers then start without it.
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
from itertools import pairwise
from pathlib import Path

from protocol.errors import StaleFlowError
from protocol.files import exists
from protocol.settings import RolloutSettings, TrainerSettings

COMMAND = (sys.executable, "-P", "-m", "workers.host.fork_server")
ACCELERATORS = (Path("/dev/nvidia0"), Path("/dev/nvidiactl"), Path("/dev/kfd"))
AT_IMPORT = ("CUDA", "HF_", "LD_", "PYTHON", "PYTORCH", "TORCH", "TRANSFORMERS")
"""Prefixes of environment variables that libraries read at import; other values need another server."""
EACH_ITS_OWN = ("PYTHONPATH",)
THROUGH = b"0"
LAST_WORDS_BYTES = 2000
END_CHARACTERS = 300
MAX_ANSWER_BYTES = 4096


class ForkServerLost(StaleFlowError):
    """The server has ended, or could not start; the text has the end of its log."""


class ForkedProcess:
    """A process forked by the server, with the interface of an `asyncio.subprocess` one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """The exit code, negative for a signal; may be awaited any number of times."""
        return await asyncio.shield(self._ended)

    def end(self, code: int) -> None:
        """The process has ended, as the server reported, or with the server."""
        if not self._ended.done():
            self._ended.set_result(code)


class Forks:
    """The forked processes of one run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment`: for the server, if it has to be started. Raises: OSError if it cannot be."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._server = _server_of(environment)
        except OSError:
            self._socket.close()
            theirs.close()
            raise
        with theirs, suppress(ConnectionError):  # if it has ended since, `_hear` notices
            socket.send_fds(self._server.door, [b"c"], [theirs.fileno()])
        self._socket.setblocking(False)
        self._one_at_a_time = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        """Unanswered requests by number; the caller may be cancelled."""
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

        `output` and `error` are descriptors. Raises: ForkServerLost, from then on at every call; OSError if
        the machine has no room for another process now.
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
        """Disconnect from the server, which kills the processes that still run."""
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
        if answer["ended"] not in self._processes:  # it ended before the server could report its start
            self._begin(answer["ended"], asked)
        self._processes.pop(answer["ended"]).end(answer["code"])

    def _begin(self, pid: int, asked: asyncio.Future[ForkedProcess] | None) -> None:
        process = self._processes[pid] = ForkedProcess(pid)
        if asked is None or asked.done():  # the caller was cancelled meanwhile
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        else:
            asked.set_result(process)

    def _give_up(self) -> None:
        """The server is gone: its processes are killed, and all requests fail."""
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
        told = f"The process that forks workers has ended. Its last words: {_end_of(words) or 'none.'}"
        return ForkServerLost(f"{told}\n{words}" if "\n" in words else told)


def _end_of(words: str) -> str:
    """The last exception in these words, or their last line, in one line: consoles show no more of them."""
    lines = words.splitlines()
    pairs = list(enumerate(pairwise(lines), 1))
    begin = next((at for at, (one, two) in reversed(pairs) if one[:1] == " " != two[:1]), len(lines) - 1)
    return " ".join(" ".join(lines[begin:]).split())[:END_CHARACTERS]


class _Server:
    """A fork server of this process."""

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
        threading.Thread(
            target=self.process.wait, name="fork server", daemon=True
        ).start()  # reaps it if it ends idle

    def last_words(self) -> str:
        """The end of its log; "" if it is empty."""
        if self._log.closed:
            return self._words
        size = os.fstat(self._log.fileno()).st_size  # pread: the server's writing position is shared
        words = os.pread(self._log.fileno(), LAST_WORDS_BYTES, max(0, size - LAST_WORDS_BYTES))
        return words.decode(errors="replace").strip()

    def close(self) -> None:
        self.door.close()
        self.process.kill()
        self.process.wait()
        self._words = self.last_words()  # a run may still ask for them
        self._log.close()


_servers: list[_Server] = []  # one of each kind that is in use
_change = threading.Lock()


def _server_of(environment: Mapping[str, str]) -> _Server:
    """The server for this environment, with one more client."""
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
    """Whether a worker of these settings may be forked.

    It may on Linux, with a built-in engine, if torch uses no accelerator: forks of a process that has
    initialized a driver cannot use it.
    """
    is_on_cpu = settings.device == "cpu" or (settings.device == "auto" and not has_accelerator())
    return sys.platform == "linux" and settings.engine in ("torch", "fsdp") and is_on_cpu


def has_accelerator() -> bool:
    """Whether this machine has an accelerator, which user functions may use, too."""
    return any(exists(path) for path in ACCELERATORS)
