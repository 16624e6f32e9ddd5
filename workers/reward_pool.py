"""A few child processes that call the reward function, each one request at a time.

Invariants: the event loop never runs the user's code and never waits for it; a child that takes too long or
dies is killed, with everything that it started, and replaced before its request is answered; none is left
after `aclose`.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from protocol.codec import pack
from protocol.errors import ConfigError, RunError
from workers.reward_process import BROKEN, LENGTH_BYTES, SCORED

START_LIMIT_S = 300.0  # to import the user's module, which may pull in a large library
ROOT = Path(__file__).resolve().parent.parent  # where this package lies


class ScoringFailed(Exception):
    """The function raised, hung, died, or returned something else than numbers; the text is for the user."""


class RewardPool:
    """`processes` children around the function with this import path."""

    def __init__(
        self,
        function: str,
        *,
        processes: int,
        timeout_s: float,
        import_paths: Sequence[str] = (),
        field: str = "reward.function",
    ):
        """`field`: the key of the configuration that names the function."""
        self._function, self._field = function, field
        self._count = processes
        self._timeout_s = timeout_s
        paths = [str(ROOT), *import_paths, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        self._children: set[Process] = set()
        self._idle: asyncio.Queue[Process] = asyncio.Queue()

    async def start(self) -> None:
        """Start the children. Raises: ConfigError if the function cannot be imported or adapted."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._count):
                tasks.create_task(self._add_child(), name=f"reward process {number}")

    async def score(self, request: Sequence[Any]) -> list[float]:
        """The rewards of one request (see reward_process), when a child is free.

        Raises: ScoringFailed; ConfigError or RunError if a dead child cannot be replaced.
        """
        child = await self._idle.get()
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await _exchange(child, pack(request))
        except TimeoutError:
            await self._stop(child)
            limit = f"`reward.timeout_s` = {self._timeout_s:g} s"
            why = f"The reward function took longer than {limit} and was killed."
        except (EOFError, OSError):
            await self._stop(child)
            why = (
                f"The process of the reward function ended with exit code {child.returncode} while it "
                "scored; what it printed is in this worker's log."
            )
        else:
            self._idle.put_nowait(child)
            if reply[0] == SCORED:
                return reply[1]
            raise ScoringFailed(reply[1])
        await self._add_child()
        raise ScoringFailed(why)

    async def aclose(self) -> None:
        """End all children, at once."""
        for child in list(self._children):
            await self._stop(child)

    async def _add_child(self) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "workers.reward_process", self._function, str(os.getpid()),
            stdin=PIPE, stdout=PIPE, env=self._environment, start_new_session=True,
        )  # fmt: skip
        self._children.add(child)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                reply = await _receive(child)
        except (TimeoutError, EOFError, OSError) as error:
            await self._stop(child)
            raise RunError(
                f"The process of the reward function {self._function!r} did not start "
                f"({type(error).__name__}, exit code {child.returncode}); expected it to import the module "
                f"within {START_LIMIT_S:g} s. What it printed is in this worker's log."
            ) from None
        if reply[0] == BROKEN:
            await self._stop(child)
            raise ConfigError(f"`{self._field}` cannot be used. {reply[1]}")
        self._idle.put_nowait(child)

    async def _stop(self, child: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()
        self._children.discard(child)


async def _exchange(child: Process, body: bytes) -> list[Any]:
    assert child.stdin is not None
    child.stdin.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
    await child.stdin.drain()
    return await _receive(child)


async def _receive(child: Process) -> list[Any]:
    assert child.stdout is not None
    length = await child.stdout.readexactly(LENGTH_BYTES)
    return msgpack.unpackb(await child.stdout.readexactly(int.from_bytes(length, "big")))
