"""A process of users' code below its keeper, as its worker sees it.

Invariants: its bytes are cut into packets before use; bytes that are not a packet end it; when it has ended,
`_settled` is called once, after all that it has started has ended.
"""

import asyncio
import logging
import os
import secrets
import signal
import sys
from asyncio import SubprocessTransport
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from protocol.errors import RunError
from protocol.importing import python_path
from workers.children.packets import CLOSED, OUT_OF_MEMORY, SECRET_BYTES, GarbageError, Packets

logger = logging.getLogger(__name__)

END_LIMIT_S = 10.0
"""For the keeper to end everything, or for a process that has closed its pipe to end."""


def half_mb(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Half of the machine's memory in MB, or of the container's if that is less.

    The default memory limit of a process. `groups`: folder of the kernel's cgroup limits.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # of version 2 and 1; "max": no limit
        with suppress(OSError, ValueError):
            sizes.append(int((groups / name).read_text()))
    return min(sizes) >> 21


def environment_of(import_paths: Sequence[str]) -> dict[str, str]:
    """The environment of a process that finds our packages and the user's modules."""
    return os.environ | {"PYTHONPATH": python_path(*import_paths)}


class Code(NamedTuple):
    """The users' code in messages for people, and its memory limit."""

    what: str  # "the reward function"
    memory_key: str  # configuration key
    memory_mb: int  # for the process with all that it has started


class KeptProcess(asyncio.SubprocessProtocol):
    """A process and its two pipes."""

    def __init__(self, code: Code, *, setup: bytes, max_bytes: int) -> None:
        """`setup`: the first packet to the process; `max_bytes`: of a packet from it."""
        self.is_open = True
        """Whether requests may still be sent."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the code is imported; fails with ConfigError if it cannot be, RunError if it died."""
        self.gone = asyncio.Event()
        self.reason = ""
        """Why it has ended."""
        self.was_killed = False
        """Whether it was killed by a signal from elsewhere than its worker or keeper."""
        self._code, self._setup = code, setup
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._packets = Packets(secret=self._secret, max_bytes=max_bytes)
        self._transport: SubprocessTransport
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_started(self) -> bool:
        """Whether it has been ready; it may have ended since."""
        return self.ready.done() and self.ready.exception() is None

    async def start(self, module: str, name: str, environment: Mapping[str, str]) -> None:
        """Start the process; `module` has the `main` that it runs, and `name` is for `ps`."""
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            sys.executable, "-P", "-m", "workers.children.keeper", module, name, str(self._code.memory_mb),
            stdin=PIPE, stdout=PIPE, stderr=None, env=environment, start_new_session=True,
        )  # fmt: skip

    def _take(self, kind: Any, parts: list[Any]) -> bool:
        """Handle one packet; returns whether it is an answer. Raises: GarbageError if it is malformed."""
        raise NotImplementedError

    def _answered(self) -> None:
        """Called after packets with answers among them."""

    def _settled(self) -> None:
        """Called when the process is gone: settle its open requests."""
        raise NotImplementedError

    # -- as asyncio calls them --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process was started."""
        self._transport = cast("SubprocessTransport", transport)
        self._write(self._secret + self._setup)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read the bytes of the process."""
        answers = 0
        try:
            for kind, *parts in self._packets.feed(data):
                if self._is_ending:
                    return
                answers += self._take(kind, parts)
        except GarbageError as error:
            self.end(
                f"The process of {self._code.what} wrote something else than answers to the pipe to its "
                f"worker, and was killed: {error}. The function writes to a descriptor that it did not open."
            )
        if answers:
            self._answered()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """The process ends, or has closed its end."""
        self.is_open = False
        if not self._is_ending and self._timer is None:
            self._set_timer(END_LIMIT_S, lambda: self.end(self._pipe_closed()))

    def process_exited(self) -> None:
        """The process has ended; its last bytes may still be in the pipe."""
        self.is_open = False
        self._set_timer(END_LIMIT_S, self._settle)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended, and all of its bytes were read."""
        self._settle()

    # -- its end ----------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """Kill the process with all that it has started."""
        if self._is_ending or self.gone.is_set():
            return
        self.is_open, self._is_ending = False, True
        self.reason = reason
        self._set_timer(END_LIMIT_S, self._kill_keeper)
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            cast("asyncio.WriteTransport", stdin).abort()  # the keeper sees it, and ends everything

    def _kill_keeper(self) -> None:
        logger.warning("Something that %s has started cannot be killed; it is left alone.", self._code.what)
        self._set_timer(END_LIMIT_S, self._settle)
        self._transport.kill()

    def _set_timer(self, delay_s: float, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, what)

    def _settle(self) -> None:
        if self.gone.is_set():
            return
        self.is_open = False
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_ending:
            code = self._transport.get_returncode()
            self.reason, self.was_killed = self._how_it_ended(code), code is not None and code < 0
        self._transport.close()
        if not self.ready.done():
            self.ready.set_exception(RunError(self.reason))
        self.gone.set()
        self._settled()

    def _write(self, data: bytes) -> None:
        stdin = cast("asyncio.WriteTransport | None", self._transport.get_pipe_transport(0))
        if stdin is not None and not stdin.is_closing():
            stdin.write(data)

    # -- in words ---------------------------------------------------------------------------------------

    def _how_it_ended(self, code: int | None) -> str:
        what, key, memory_mb = self._code
        if code == CLOSED:
            return self._pipe_closed()
        if code == OUT_OF_MEMORY:
            return (
                f"The process of {what} took more than `{key}` = {memory_mb} MB of memory, with all that it "
                "had started, and was killed. Raise the limit if it needs that."
            )
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            how = f"was killed by signal {-code} ({name}), and not by its worker"
            if name == "SIGKILL":
                how += "; the kernel does that where memory runs out"
            if name == "SIGXCPU":
                how += "; the kernel does that where the limit of CPU time is reached"
        return f"The process of {what} {how}{self._meanwhile()}. What it printed is in this worker's log."

    def _meanwhile(self) -> str:
        """Its activity when it died, as the end of a clause."""
        return ""

    def _pipe_closed(self) -> str:
        return (
            f"The process of {self._code.what} closed the pipe to its worker, as code does that closes "
            "descriptors which it did not open, and was ended. What it printed is in this worker's log."
        )
