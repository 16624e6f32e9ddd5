"""A worker's handle on the process beside it that exchanges versions with other hosts.

Invariants: it is started when the controller first asks for it, and once; it ends with the worker; a pull is
answered once, in the order asked; an exchange that dies fails what it had in hand, in words, and is started
again by the next order.
"""

import asyncio
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protocol.errors import WeightsError
from protocol.segments import SHARED_MEMORY, has_room
from protocol.settings import WorkerSettings
from protocol.wire.endpoints import is_loopback
from protocol.wire.security import ServerKey
from workers.link.link import Link
from workers.weights.address import Announced, address_to_announce
from workers.weights.channel import Orders
from workers.weights.store import path_of

logger = logging.getLogger("workers")

COMMAND = (sys.executable, "-P", "-m", "workers.weights.exchange")
ROOT = Path(__file__).resolve().parents[2]
LIMIT = 1 << 20  # bytes of one line
KEPT_BASES = 1  # retired versions that stay for deltas, beside those that are in use
SPARE_ROOM = 2  # versions that must still fit then
ALLOCATOR = {  # of glibc: keep the memory that chunks come in; touching it again cost as much as the rest
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}


class Fetched(NamedTuple):
    """A version that is on this host now."""

    location: str
    refused: int  # chunks with a wrong checksum, asked for again
    received_bytes: int


class WeightsExchangeProcess:
    """The exchange of one worker."""

    command: Sequence[str] = COMMAND
    """What starts its process."""

    def __init__(
        self,
        directory: Path,
        *,
        address: Announced,
        window_bytes: int,
        key: ServerKey | None = None,
        is_writers: bool = False,
        deltas: bool = True,
        on_restart: Callable[[str], None] = lambda endpoint: None,
    ) -> None:
        """An exchange that is started when it is needed.

        `address`: that of ours which others reach; `is_writers`: the folder is the trainer's; `on_restart` is
        told of another endpoint.
        """
        self._orders = Orders(
            directory=str(directory), bind=address.endpoint, window_bytes=window_bytes, key=key,
            is_writers=is_writers, deltas=deltas,
        )  # fmt: skip
        self._bases: deque[int] = deque()  # retired, and kept for what differs from them
        self._address = address
        self._on_restart = on_restart
        self._is_closing = False
        self._process: Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._endpoint: asyncio.Future[str] | None = None
        self._pulls: dict[int, asyncio.Future[Fetched]] = {}
        self._retired: dict[int, asyncio.Future[None]] = {}
        self.served_bytes = 0
        """Handed to others, as of the last version that was retired."""

    async def start(self) -> str:
        """The endpoint at which it serves. Raises: WeightsError if it cannot start."""
        if self._endpoint is None:
            self._endpoint = asyncio.get_running_loop().create_future()
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=PIPE,
                stdout=PIPE,
                limit=LIMIT,
                env=os.environ | ALLOCATOR | {"PYTHONPATH": path},
            )
            self._write(self._orders.model_dump(mode="json"))
            self._listener = asyncio.create_task(self._listen(self._process), name="weights exchange")
            _say(await self._endpoint, self._address)
        return await self._endpoint

    async def fetch(self, policy_version: int, digest: str, sources: Sequence[str]) -> Fetched:
        """Have a version on this host. Raises: WeightsError if no source has it."""
        await self.start()
        if policy_version in self._bases:  # retired here, and wanted again: whoever publishes it says whether
            self._bases.remove(policy_version)
            self._write({"free": [policy_version]})
        future = self._pulls[policy_version] = asyncio.get_running_loop().create_future()
        self._write({"pull": policy_version, "digest": digest, "sources": list(sources)})
        return await future

    async def retire(self, policy_version: int) -> list[int]:
        """Let go of versions, and unless the folder is the trainer's, remove them; which ones these are.

        The one that was retired last is kept where there is room, as long as there are readers: the next is
        told by it.
        """
        if self._process is None or self._endpoint is None:
            return [policy_version]
        self._bases.append(policy_version)
        kept = KEPT_BASES if self._orders.deltas and self._has_room_beside(policy_version) else 0
        freed = [self._bases.popleft() for _ in range(len(self._bases) - kept)]
        future = self._retired[policy_version] = asyncio.get_running_loop().create_future()
        self._write({"retire": policy_version, "free": freed})
        await future
        return freed

    def _has_room_beside(self, policy_version: int) -> bool:
        """Whether the host takes two more versions as large as this one."""
        directory = Path(self._orders.directory)
        try:
            size = path_of(directory, policy_version).stat().st_size
            room = os.statvfs(directory)
        except OSError:
            return False
        if directory.is_relative_to(SHARED_MEMORY):
            return has_room(SPARE_ROOM * size)
        return room.f_bavail * room.f_frsize >= SPARE_ROOM * size

    async def close(self) -> None:
        """End the process."""
        if self._process is None or self._listener is None:
            return
        assert self._process.stdin is not None
        self._is_closing = True
        self._process.stdin.close()
        await self._listener

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._take(json.loads(line))
        code = await process.wait()
        error = WeightsError(
            f"The process that exchanges policy versions ended with code {code}; expected it to live as long "
            "as its worker. The worker's log may say why; it is started again."
        )
        has_served = self._endpoint is not None and self._endpoint.done()
        for future in (self._endpoint, *self._pulls.values()):
            if future is not None and not future.done():
                future.set_exception(error)
        for future in self._retired.values():
            future.set_result(None)
        self._endpoint, self._pulls, self._retired = None, {}, {}
        if has_served and not self._is_closing:
            self._on_restart(await self.start())

    def _take(self, words: dict[str, Any]) -> None:
        match words:
            case {"serving": endpoint}:
                assert self._endpoint is not None
                self._endpoint.set_result(endpoint)
            case {"pulled": version, "location": location, "refused": refused, "received_bytes": received}:
                self._pulls.pop(version).set_result(Fetched(location, refused, received))
            case {"failed": version, "reason": reason}:
                self._pulls.pop(version).set_exception(WeightsError(reason))
            case {"retired": version, "served_bytes": served}:
                self.served_bytes = served
                self._retired.pop(version).set_result(None)


def make_weights_exchange(
    directory: Path,
    link: Link,
    settings: WorkerSettings,
    *,
    is_writers: bool,
    on_restart: Callable[[str], None],
) -> WeightsExchangeProcess:
    """The exchange of the worker behind this link, which is started when it is needed.

    `settings`: of this worker. Raises: ConfigError if STALEFLOW_ADDRESS is none of this host's.
    """
    address = address_to_announce(
        link.endpoint,
        is_private=link.weights_key is not None,
        wanted=settings.weights.host,
        bound=settings.bind_host,
    )
    return WeightsExchangeProcess(
        directory,
        address=address,
        window_bytes=settings.weights.window_mb << 20,
        key=link.weights_key,
        is_writers=is_writers,
        deltas=settings.weights.deltas,
        on_restart=on_restart,
    )


def _say(endpoint: str, address: Announced) -> None:
    if is_loopback(address.host) and "controller.keys" not in address.why:
        logger.warning(
            "Policy versions are handed on at %s, %s: workers on other hosts cannot get them there. Say at "
            "which address they reach this host: weights.host (docs/weights.md).", endpoint, address.why,
        )  # fmt: skip
    else:
        logger.info("Policy versions are handed on at %s, %s.", endpoint, address.why)
