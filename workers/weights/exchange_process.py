"""A worker's handle on its process that exchanges versions with other hosts.

Invariants: the process is started when the controller first asks for it; it ends with the worker; a pull is
answered once, in the order asked; if the process dies, its open pulls fail with an error message, and it is
started again, the first time at once; if it dies MOST_DEATHS times without an answer in between, the worker
fails.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from protocol.errors import NoRoom, RunError, SourcesUnreachable, WeightsError
from protocol.importing import python_path
from protocol.messages import Serving
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
LIMIT = 1 << 20  # bytes of one line
KEPT_BASES = 1  # retired versions kept as bases of deltas, beside those in use
SPARE_ROOM = 2  # versions that must still fit then
MOST_DEATHS = 5  # in a row, or failed starts: then the cause is not a request
PAUSE_S = 1.0  # more before each further start: a host may have no room for a process for a while
ALLOCATOR = {  # of glibc: keep the memory that chunks come in; touching it again cost as much as the rest
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
FAILURES = {"unreachable": SourcesUnreachable, "no room": NoRoom}
Answer = TypeVar("Answer")


class Fetched(NamedTuple):
    """A version that is now on this host."""

    location: str
    refused: int  # chunks with a wrong checksum, asked for again
    received_bytes: int


class WeightsExchangeProcess:
    """The exchange of one worker."""

    command: Sequence[str] = COMMAND
    """The command that starts its process."""

    def __init__(
        self,
        directory: Path,
        *,
        address: Announced,
        window_bytes: int,
        key: ServerKey | None = None,
        is_writers: bool = False,
        on_disk: Path | None = None,
        deltas: bool = True,
        on_restart: Callable[[str], None] = lambda endpoint: None,
        on_failure: Callable[[RunError], None] = lambda error: None,
    ) -> None:
        """An exchange whose process is started when it is needed.

        `address`: the address of this host that others reach; `is_writers`: the folder is the trainer's;
        `on_disk`: the folder in its place if shared memory has no room for the versions;
        `on_restart` gets a new endpoint, `on_failure` the error after too many deaths.
        """
        self._orders = Orders(
            directory=str(directory), on_disk=None if on_disk is None else str(on_disk),
            bind=address.endpoint, window_bytes=window_bytes, key=key, is_writers=is_writers, deltas=deltas,
        )  # fmt: skip
        self._directory = directory  # where the newest version is
        self._bases: deque[int] = deque()  # retired, and kept as bases of deltas
        self._address = address
        self._on_restart, self._on_failure = on_restart, on_failure
        self._closing, self._has_served = asyncio.Event(), False
        self._deaths = 0  # since its last answer
        self._keeper: asyncio.Task[None] | None = None
        self._process: Process | None = None  # while one lives
        self._endpoint: asyncio.Future[str] | None = None  # of the process that lives, or of the next
        self._pulls: dict[int, asyncio.Future[Fetched]] = {}
        self._retired: dict[int, asyncio.Future[None]] = {}
        self.served_bytes = 0
        """Bytes served to others, as of the last retired version."""

    async def start(self) -> str:
        """Start the process if it does not run; returns the endpoint at which it serves.

        Raises: WeightsError if it cannot start; RunError if it has died too often.
        """
        if self._endpoint is None:
            self._next_endpoint()
            self._keeper = asyncio.create_task(self._keep(), name="weights exchange")
        assert self._endpoint is not None
        return await asyncio.shield(self._endpoint)

    async def fetch(self, policy_version: int, digest: str, sources: Sequence[str]) -> Fetched:
        """Pull a version to this host. A pull that nobody waits for any more goes on, and can be joined.

        Raises: WeightsError if no source has it, SourcesUnreachable if none is reached, NoRoom if this host
        cannot keep it; as `start`.
        """
        await self._until_it_lives()
        if policy_version in self._bases:  # retired here, and wanted again: its publisher decides
            self._bases.remove(policy_version)
            self._write({"free": [policy_version]})
        if (future := self._pulls.get(policy_version)) is None:
            future = self._pulls[policy_version] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda future: future.exception())  # nobody need wait
            self._write({"pull": policy_version, "digest": digest, "sources": list(sources)})
        return await asyncio.shield(future)

    async def retire(self, policy_version: int) -> list[int]:
        """Stop serving a version; returns the freed versions, removed unless the folder is the trainer's.

        The version that was retired last is kept if there is room, as long as there are readers: it is the
        base of the next one's deltas. Raises: RunError if the process has died too often.
        """
        if self._endpoint is None:
            return [policy_version]
        await self._until_it_lives()
        self._bases.append(policy_version)
        kept = KEPT_BASES if self._orders.deltas and self._has_room_beside(policy_version) else 0
        freed = [self._bases.popleft() for _ in range(len(self._bases) - kept)]
        future = self._retired[policy_version] = asyncio.get_running_loop().create_future()
        self._write({"retire": policy_version, "free": freed})
        await future
        return freed

    def _has_room_beside(self, policy_version: int) -> bool:
        """Whether the host has room for two more versions of this size."""
        try:
            size = path_of(self._directory, policy_version).stat().st_size
            room = os.statvfs(self._directory)
        except OSError:
            return False
        if self._directory.is_relative_to(SHARED_MEMORY):
            return has_room(SPARE_ROOM * size)
        return room.f_bavail * room.f_frsize >= SPARE_ROOM * size

    async def close(self) -> None:
        """End the process."""
        self._closing.set()
        if self._process is not None:
            _let_end(self._process)
        if self._keeper is not None:
            await self._keeper

    async def _until_it_lives(self) -> None:
        """Wait until the process runs. Raises: as `start`."""
        await self.start()
        while self._process is None:  # it has died just then
            await self.start()

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _keep(self) -> None:
        """Run the process, and restart it when it dies, until it is closed or has died too often."""
        while True:
            how = await self._live()
            self._process, self._deaths = None, self._deaths + 1
            for pull in self._pulls.values():
                _settle(pull, WeightsError(how))
            for retired in self._retired.values():
                _settle(retired, None)
            self._pulls, self._retired = {}, {}
            if self._closing.is_set() or not self._has_served:
                self._next_endpoint().set_exception(WeightsError(how))
                self._endpoint = None
                return
            if self._deaths >= MOST_DEATHS:
                failure = RunError(
                    f"{how} It has failed {self._deaths} times in a row and answered nothing in between, so "
                    "it is not started again, and the worker ends."
                )
                self._next_endpoint().set_exception(failure)
                self._on_failure(failure)
                return
            logger.warning("%s It is started again.", how)
            self._next_endpoint()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), (self._deaths - 1) * PAUSE_S)

    def _next_endpoint(self) -> "asyncio.Future[str]":
        """The future endpoint of the next process; callers that already wait go on waiting."""
        if self._endpoint is None or self._endpoint.done():
            self._endpoint = asyncio.get_running_loop().create_future()
            self._endpoint.add_done_callback(lambda future: future.exception())  # nobody need wait
        return self._endpoint

    async def _live(self) -> str:
        """Run the process once; returns how it ended."""
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=PIPE,
                stdout=PIPE,
                limit=LIMIT,
                env=os.environ | ALLOCATOR | {"PYTHONPATH": python_path()},
            )
        except OSError as error:
            return (
                f"The process that exchanges policy versions cannot be started: {error}. Expected room for "
                "one more process: look at the memory and the limits of this host."
            )
        self._write(self._orders.model_dump(mode="json"))
        if self._closing.is_set():
            _let_end(process)
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self._take(json.loads(line))
        except ValueError as error:
            logger.error("The process that exchanges policy versions said no answer: %s.", error)
            process.kill()
        return (
            f"The process that exchanges policy versions ended with code {await process.wait()}; expected it "
            "to live as long as its worker. The worker's log may say why."
        )

    def _take(self, words: dict[str, Any]) -> None:
        match words:
            case {"serving": endpoint}:
                self._next_endpoint().set_result(endpoint)
                _say(endpoint, self._address)
                if self._has_served:
                    self._on_restart(endpoint)
                self._has_served = True
            case {"pulled": version, "location": location, "refused": refused, "received_bytes": received}:
                self._directory = Path(location).parent
                self._answer(self._pulls, version, Fetched(location, refused, received))
            case {"failed": version, "reason": reason, "kind": kind}:
                self._answer(self._pulls, version, FAILURES.get(kind, WeightsError)(reason))
            case {"retired": version, "served_bytes": served}:
                self.served_bytes = served
                self._answer(self._retired, version, None)

    def _answer(
        self, asked: "dict[int, asyncio.Future[Answer]]", policy_version: int, answer: Answer | WeightsError
    ) -> None:
        self._deaths = 0
        _settle(asked.pop(policy_version), answer)


def _settle(future: "asyncio.Future[Answer]", answer: Answer | WeightsError) -> None:
    """Set the future's result, unless it has one."""
    if future.done():
        return
    if isinstance(answer, WeightsError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _let_end(process: Process) -> None:
    """Close the process's standard input, with which it ends."""
    assert process.stdin is not None
    process.stdin.close()


def make_weights_exchange(
    directory: Path,
    link: Callable[[], Link],
    settings: WorkerSettings,
    *,
    is_writers: bool,
    on_disk: Path | None = None,
) -> WeightsExchangeProcess:
    """The exchange of a worker, whose process is started when it is needed.

    `link`: returns the worker's current link; `settings`: of this worker; `on_disk`: the folder in place of
    `directory` if shared memory has no room for the versions. Raises: ConfigError if
    STALEFLOW_ADDRESS names no address of this host.
    """
    key = link().weights_key

    def announce(endpoint: str) -> None:
        if not link().is_closed:  # else the next controller asks for it
            link().send(Serving(endpoint))

    address = address_to_announce(
        link().endpoint,
        is_private=key is not None,
        wanted=settings.weights.host,
        bound=settings.bind_host,
    )
    return WeightsExchangeProcess(
        directory,
        address=address,
        window_bytes=settings.weights.window_mb << 20,
        key=key,
        is_writers=is_writers,
        on_disk=on_disk,
        deltas=settings.weights.deltas,
        on_restart=announce,
        on_failure=lambda error: link().fail(error),
    )


def _say(endpoint: str, address: Announced) -> None:
    if is_loopback(address.host) and "controller.keys" not in address.why:
        logger.warning(
            "Policy versions are handed on at %s, %s: workers on other hosts cannot get them there. Say at "
            "which address they reach this host: weights.host (docs/weights.md).", endpoint, address.why,
        )  # fmt: skip
    else:
        logger.info("Policy versions are handed on at %s, %s.", endpoint, address.why)
