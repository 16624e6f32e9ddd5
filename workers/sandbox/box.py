"""A sandbox for programs, used from asyncio.

Invariants: an outcome is about the program, SandboxBroken about the sandbox, and nothing is both; a program
whose caller stops waiting is ended; as many programs run at once as there are cores, unless configured
otherwise.
"""

import asyncio
import contextlib
import json
import os
import platform
import shutil
import site
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from workers.sandbox import bubblewrap, seccomp
from workers.sandbox.job import Backend, Job, ProgramOutcome, SandboxBroken, header_of, outcome_of

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).resolve().parent / "inside"
FILES = {"run": ("begin", "run"), "serve": ("begin", "peer", "serve"), "ask": ("begin", "peer", "ask")}
"""By script, the files of `inside` that its sandbox gets."""
PAIR_GRACE_S = 1.0
"""Time for a program to end by itself after its tests, so that its own outcome is known."""
MOST_HEADER_BYTES = 1 << 16
"""Largest JSON header of an answer."""
END_LIMIT_S = 30.0
"""Time for a supervisor to answer after the wall limit of its program."""


class Box:
    """Runs programs in a sandbox, within `async with`."""

    def __init__(self, backend: Backend, *, python: str, concurrency: int = 0) -> None:
        """`python`: runs the programs. `concurrency`: programs at once; 0: as many as this process has cores.

        The sandbox is not open yet.
        """
        self.backend: Backend = backend
        self.python = python
        self.concurrency = concurrency or len(os.sched_getaffinity(0))
        self._free = asyncio.Semaphore(self.concurrency)
        self._alone = asyncio.Lock()
        self._warden: Process | None = None
        self._socket: socket.socket | None = None
        self._asking = asyncio.Lock()
        self._sources = {path.stem: path.read_text() for path in INSIDE.glob("[!_]*.py")}
        self._static = {
            "backend": backend,
            "python": python,
            "seccomp": seccomp.filter_for(platform.machine()).hex(),
            "paths": [path for path in site.getsitepackages() if os.path.isdir(path)],
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(self, job: Job, *, is_alone: bool = False) -> ProgramOutcome:
        """Run a program when there is room, or when no other one of this box runs. Raises: SandboxBroken."""
        async with self._room(is_alone):
            return await self._run(job, None)

    async def run_pair(
        self, leader: Job, other: Job, *, is_alone: bool = False
    ) -> tuple[ProgramOutcome, ProgramOutcome]:
        """Run two programs, each in its own sandbox, connected by a socket at descriptor 4.

        When the leader has ended, the other one is ended. Raises: SandboxBroken.
        """
        ends = socket.socketpair()
        stop = asyncio.Event()
        try:
            async with self._room(is_alone), asyncio.TaskGroup() as tasks:
                follower = tasks.create_task(self._run(other, ends[1], stop), name=f"sandbox {other.script}")
                led = await self._run(leader, ends[0])
                await asyncio.wait([follower], timeout=PAIR_GRACE_S)
                stop.set()
        except* SandboxBroken as broken:
            raise broken.exceptions[0] from None
        finally:
            for end in ends:
                end.close()
        return led, follower.result()

    @contextlib.asynccontextmanager
    async def _room(self, is_alone: bool) -> AsyncIterator[None]:
        taken = 0
        try:
            async with self._alone:  # a program that must run alone waits for the others, and they for it
                while taken < (self.concurrency if is_alone else 1):
                    await self._free.acquire()
                    taken += 1
                if is_alone:
                    yield
            if not is_alone:
                yield
        finally:
            for _ in range(taken):
                self._free.release()

    async def _run(
        self, job: Job, channel: socket.socket | None, stop: asyncio.Event | None = None
    ) -> ProgramOutcome:
        mine, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=mine)
            stopping = asyncio.create_task(_end_when(stop, writer), name="end of a sandbox") if stop else None
            try:
                await self._ask(job, theirs, channel)
                theirs.close()
                async with asyncio.timeout(job.limits.wall_s + END_LIMIT_S):
                    length = int.from_bytes(await reader.readexactly(4), "big")
                    if length > MOST_HEADER_BYTES:
                        raise SandboxBroken(
                            f"The sandbox announced an answer whose head has {length} bytes, and it has at "
                            f"most {MOST_HEADER_BYTES}. Nothing was scored."
                        )
                    text = await reader.readexactly(length)
                    header = header_of(text, most_bytes=job.limits.output_bytes)
                    stdout, stderr = [await reader.readexactly(size) for size in header["lengths"]]
            except (asyncio.IncompleteReadError, ConnectionError):
                raise SandboxBroken(
                    "The process that watches a program in the sandbox was killed. Nothing was scored."
                ) from None
            except TimeoutError:
                raise SandboxBroken(
                    f"A program in the sandbox could not be ended within {END_LIMIT_S:g} s of its limit. "
                    "Nothing was scored."
                ) from None
            finally:
                if stopping is not None:
                    stopping.cancel()
                writer.close()  # ends the program, if it runs
        return outcome_of(header, stdout, stderr)

    async def _ask(self, job: Job, reply: socket.socket, channel: socket.socket | None) -> None:
        program = shutil.which(bubblewrap.PROGRAM) or ""
        if self.backend == "bubblewrap" and not program:
            raise SandboxBroken(
                f"`{bubblewrap.PROGRAM}` is not on the path any more. {bubblewrap.INSTALL_LINE}"
            )
        request = self._static | {
            "bwrap": program,
            "visible": sorted({sys.base_prefix, *self._static["paths"]}),
            "script": job.script,
            "orders": dict(job.orders),
            "limits": asdict(job.limits),
            "files": {f"{name}.py": self._sources[name] for name in FILES[job.script]},
        }
        files: list[int] = []
        try:
            for data in (json.dumps(request).encode(), job.stdin):
                files.append(_file_of(data))  # one by one: there may be no room for the second
            descriptors = [files[0], reply.fileno(), files[1]] + ([channel.fileno()] if channel else [])
            async with self._asking:  # one at a time: asyncio wakes only one writer of a socket
                await _send(await self._start(), descriptors)
            if channel is not None:
                channel.close()  # so that each sees when the other ends
        finally:
            for descriptor in files:
                os.close(descriptor)

    async def _start(self) -> socket.socket:
        """The socket to a running warden."""
        if self._warden is not None and self._socket is not None and not _is_gone(self._socket):
            return self._socket
        await self.close()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        with theirs:
            self._warden = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "workers.sandbox.warden", str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        self._socket = mine
        return mine

    async def close(self) -> None:
        """End all programs."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._warden is not None:
            await self._warden.wait()
            self._warden = None


def _is_gone(there: socket.socket) -> bool:
    """Whether the process at the other end has ended, perhaps without being reported yet."""
    try:
        return not there.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _file_of(data: bytes) -> int:
    """A read-only descriptor of a file with these bytes."""
    with open(os.memfd_create("staleflow-sandbox"), "wb") as file:
        file.write(data)
        file.flush()
        return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)


async def _end_when(stop: asyncio.Event, writer: asyncio.StreamWriter) -> None:
    await stop.wait()
    writer.write_eof()  # the supervisor sees it, ends the program, and answers


async def _send(asker: socket.socket, descriptors: list[int]) -> None:
    """Raises: SandboxBroken, ConnectionError."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            socket.send_fds(asker, [b"+"], descriptors)
            return
        except BlockingIOError:
            writable = loop.create_future()
            loop.add_writer(asker, writable.set_result, None)
            try:
                await writable
            finally:
                loop.remove_writer(asker)
