"""A sandbox for the asyncio program that asks for it.

Invariants: an outcome is about the program, SandboxBroken about the sandbox, and nothing is both; whoever stops
waiting for a program has it ended; as many run at once as the machine has cores, unless told otherwise.
"""

import asyncio
import json
import os
import platform
import shutil
import signal
import site
import socket
import sys
from asyncio.subprocess import Process
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from protocol.errors import ConfigError
from workers.sandbox import bubblewrap, seccomp
from workers.sandbox.job import Backend, Job, Limits, Outcome, SandboxBroken, outcome_of

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).resolve().parent / "inside"
END_LIMIT_S = 30.0
"""For a supervisor to answer behind the wall limit of its program."""
PROBE = "import decimal, json, random\nprint('it works')"
PROBE_LIMITS = Limits(cpu_s=20, wall_s=60)


class Box:
    """Programs in a sandbox, within `async with`."""

    def __init__(self, backend: Backend, *, concurrency: int = 0) -> None:
        """`concurrency`: programs at once; 0: as many as there are cores for this process."""
        self.backend: Backend = backend
        self.concurrency = concurrency or len(os.sched_getaffinity(0))
        self._free = asyncio.Semaphore(self.concurrency)
        self._alone = asyncio.Lock()
        self._warden: Process | None = None
        self._socket: socket.socket | None = None
        self._starting = asyncio.Lock()
        self._python = ""
        self._sources = {path.stem: path.read_text() for path in INSIDE.glob("[!_]*.py")}
        self._static = {
            "backend": backend,
            "seccomp": seccomp.filter_for(platform.machine()).hex(),
            "paths": [path for path in site.getsitepackages() if os.path.isdir(path)],
        }

    async def __aenter__(self) -> Self:
        """Start it, and run a program that must work. Raises: ConfigError if that does not."""
        try:
            await self._probe()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def run(self, job: Job) -> Outcome:
        """Run a program when there is room. Raises: SandboxBroken."""
        async with self._alone:  # somebody may wait for all others to end
            await self._free.acquire()
        try:
            return await self._run(job, None)
        finally:
            self._free.release()

    async def run_alone(self, job: Job) -> Outcome:
        """Run a program while no other one of this box runs. Raises: SandboxBroken."""
        async with self._alone:
            for _ in range(self.concurrency):
                await self._free.acquire()
            try:
                return await self._run(job, None)
            finally:
                for _ in range(self.concurrency):
                    self._free.release()

    async def run_pair(self, one: Job, other: Job) -> tuple[Outcome, Outcome]:
        """Run two programs, each in a sandbox of its own, which talk over descriptor 4: what one writes there
        the other reads. Raises: SandboxBroken."""
        ends = socket.socketpair()
        async with self._alone:
            await self._free.acquire()
        try:
            async with asyncio.TaskGroup() as tasks:
                runs = [
                    tasks.create_task(self._run(job, end), name=f"sandbox {job.script}")
                    for job, end in zip((one, other), ends, strict=True)
                ]
        except* SandboxBroken as broken:
            raise broken.exceptions[0] from None
        finally:
            self._free.release()
            for end in ends:
                end.close()
        return runs[0].result(), runs[1].result()

    async def _run(self, job: Job, channel: socket.socket | None) -> Outcome:
        mine, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=mine)
            try:
                await self._ask(job, theirs, channel)
                theirs.close()
                async with asyncio.timeout(job.limits.wall_s + END_LIMIT_S):
                    length = int.from_bytes(await reader.readexactly(4), "big")
                    header = json.loads(await reader.readexactly(length))
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
                writer.close()  # ends the program, if it runs
        return outcome_of(header, stdout, stderr)

    async def _ask(self, job: Job, reply: socket.socket, channel: socket.socket | None) -> None:
        asker = await self._start()
        program = shutil.which(bubblewrap.PROGRAM) or ""
        if self.backend == "bubblewrap" and not program:
            raise SandboxBroken(f"`{bubblewrap.PROGRAM}` is not on the path any more. {_install_line()}")
        request = self._static | {
            "python": self._python,
            "bwrap": program,
            "visible": sorted({sys.base_prefix, *self._static["paths"]}),
            "script": job.script,
            "orders": dict(job.orders),
            "limits": asdict(job.limits),
            "files": {f"{name}.py": self._sources[name] for name in ("begin", job.script)},
        }
        files = [_file_of(json.dumps(request).encode()), _file_of(job.stdin)]
        try:
            descriptors = [files[0], reply.fileno(), files[1]] + ([channel.fileno()] if channel else [])
            await _send(asker, descriptors)
            if channel is not None:
                channel.close()  # so that each hears when the other ends
        finally:
            for descriptor in files:
                os.close(descriptor)

    async def _start(self) -> socket.socket:
        """The socket to a warden that runs. Raises: SandboxBroken."""
        async with self._starting:
            if self._warden is not None and self._socket is not None and self._warden.returncode is None:
                return self._socket
            await self._close()
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

    async def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._warden is not None:
            await self._warden.wait()
            self._warden = None

    async def _probe(self) -> None:
        """Choose a Python, and see that the sandbox works. Raises: ConfigError."""
        if self.backend == "bubblewrap" and not shutil.which(bubblewrap.PROGRAM):
            raise ConfigError(f"`{bubblewrap.PROGRAM}` is not on the path. {_install_line()}")
        reasons: list[str] = []
        pythons = [os.path.realpath(sys._base_executable), "/usr/local/bin/python3", "/usr/bin/python3"]
        for python in pythons if self.backend == "limits" else pythons[:1]:
            self._python = python
            try:
                outcome = await self.run(Job("run", {"source": PROBE}, limits=PROBE_LIMITS))
            except SandboxBroken as error:
                reasons.append(f"{python}: {error}")
                continue
            if outcome.ended_well and outcome.stdout.strip() == b"it works":
                return
            reasons.append(f"{python}: {outcome.in_words}: {outcome.stderr.decode(errors='replace')[-300:]}")
        raise ConfigError(_not_usable(self.backend, reasons))


def _not_usable(backend: Backend, reasons: list[str]) -> str:
    text = f"The sandbox `{backend}` does not work on this machine. {' '.join(reasons)}"
    if backend == "bubblewrap":
        return (
            f"{text} It needs user namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
            "kernel.apparmor_restrict_unprivileged_userns=0; in a container, --cap-add SYS_ADMIN and "
            "--security-opt seccomp=unconfined), or root."
        )
    return f"{text} As root it runs programs as another user, who must be able to read Python: install python3 in /usr."


def _install_line() -> str:
    return f"Install it: {bubblewrap.INSTALL}."


def _file_of(data: bytes) -> int:
    """A descriptor to read this from, which cannot be written."""
    descriptor = os.memfd_create("staleflow-sandbox")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    path = f"/proc/self/fd/{descriptor}"
    reader = os.open(path, os.O_RDONLY)
    os.close(descriptor)
    return reader


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
