"""A bare server in the place of the controller, and the worker processes that a test starts."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from protocol.ids import PeerId
from protocol.messages import (
    Beat,
    FetchModel,
    InstanceStatus,
    Message,
    ModelFiles,
    Welcome,
    WorkerFailed,
)
from protocol.settings import WorkerSettings
from protocol.wire.server import Server
from tests.support.ends import end_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300  # nothing here takes ten seconds; a test that hangs fails
LETTERS = "ab0123456789+="
Kind = TypeVar("Kind", bound=Message)


class Stand:
    """A server that welcomes every worker, and the worker processes that a test starts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peer: PeerId = ""
        self._settings = ""
        self._heard: list[tuple[Message, tuple[bytes, ...]]] = []
        self._news = asyncio.Event()
        self._processes: list[Process] = []
        self.server = Server(
            f"ipc://{directory}/socket", on_message=self._on_message, on_fault=self._on_fault
        )
        self.server.start()
        (directory / "address").write_text(self.server.endpoint)

    async def start(self, role: str, **settings: Any) -> Process:
        """A worker process, by the run directory."""
        self._settings = WorkerSettings.model_validate(
            {
                "run_dir": str(self.directory),
                "seed": 0,
                "steps": 1,
                "model": {"path": str(self.directory)},
                "rollout": {"progress_s": 0.02, "status_s": 0.02, **settings.get("rollout", {})},
                "reward": settings.get("reward", {}),
                "trainer": settings.get("trainer", {}),
            }
        ).model_dump_json()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "workers.host", str(self.directory), "--role", role,
            f"--parent={os.getpid()}",
            cwd=ROOT, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def send(self, message: Message, *frames: bytes) -> None:
        self.server.send(self.peer, message, frames)

    async def expect(self, kind: type[Kind]) -> tuple[Kind, tuple[bytes, ...]]:
        """The next message of this kind; others stay for later, but a failed worker fails the test."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for place, (message, frames) in enumerate(self._heard):
                    if isinstance(message, kind):
                        del self._heard[place]
                        return message, frames
                    assert not isinstance(message, WorkerFailed), message.reason
                self._news.clear()
                await self._news.wait()

    async def until_idle(self) -> InstanceStatus:
        """The report that an instance sends at once when it runs dry."""
        while (status := (await self.expect(InstanceStatus))[0]).running:
            continue
        return status

    def _hear(self, message: Message, frames: tuple[bytes, ...] = ()) -> None:
        self._heard.append((message, frames))
        self._news.set()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        self.server.close()

    def _on_message(self, peer: PeerId, message: Message, frames: tuple[bytes, ...]) -> None:
        if type(message).__name__ == "Attach":
            self.peer = peer
            self.server.send(peer, Welcome(0.05, 600.0, self._settings))
        elif isinstance(message, FetchModel):
            self.server.send(peer, ModelFiles((), "none"))  # it has no model either
            return
        elif not isinstance(message, Beat):
            self._hear(message, frames)

    def _on_fault(self, peer: PeerId, reason: str) -> None:
        self._hear(WorkerFailed(f"The server dropped the worker: {reason}"))


def int32(*numbers: int) -> bytes:
    return np.asarray(numbers, dtype="<i4").tobytes()


async def exit_of(process: Process) -> tuple[int | None, str]:
    async with asyncio.timeout(LIMIT_S):
        _, log = await process.communicate()
    return process.returncode, log.decode()


async def gone(pid: int) -> None:
    """Returns when this process, not our child, has ended."""
    descriptor = end_of(pid)
    if descriptor is None:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(LIMIT_S):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
