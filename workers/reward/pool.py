"""The processes that call the reward function, and the queue of groups that wait for one.

Invariants: those of KeptPool; a sync function scores one group at a time in each process, an async one as
many as `concurrency` calls allow.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from protocol.rewards.kinds import FunctionReward, NamedReward
from workers.children.packets import packet
from workers.children.pool import KeptPool, PooledCode
from workers.children.process import environment_of, half_mb
from workers.reward import pipe as pipe
from workers.reward.child import (
    AskAgain,
    Call,
    CallLimits,
    Kind,
    LoopBlocked,
    OutOfCpu,
    RewardChild,
    ScoringFailed,
)
from workers.reward.kinds.interface import Place
from workers.reward.together import all_of

__all__ = ["RewardPool", "ScoringFailed"]

logger = logging.getLogger(__name__)

GRACE_S = 5.0  # for a cancelled call to close its resources
NOWHERE = Place(run_dir="")

WHOLE = 4  # parts of a request for the whole group: its number, row, prompt as text and as tokens


class RewardPool(KeptPool[RewardChild]):
    """`processes` children around the function with this import path, within `async with`."""

    def __init__(
        self, reward: NamedReward | str, *, processes: int, timeout_s: float, concurrency: int = 1,
        place: Place = NOWHERE, grace_s: float = GRACE_S, limit_key: str = "reward.timeout_s",
        out_of_cpu: float | None = None, memory_mb: int = 0, import_paths: Sequence[str] = (),
        field: str = "reward.function",
    ) -> None:  # fmt: skip
        """A pool of processes for one reward.

        `reward`: named, or the import path of a function; `field`: the configuration key that names it;
        `limit_key`: the key of `timeout_s`; `out_of_cpu`: see RewardKind; `memory_mb`: 0 for half of the
        machine's.
        """
        self._reward = FunctionReward(function=reward) if isinstance(reward, str) else reward
        name, idle = self._reward.label, " while nothing was asked of it"
        what = PooledCode("workers.reward.process", name, "reward function", field, idle)
        super().__init__(what, environment_of(import_paths))
        told = self._reward.model_dump_json().encode()  # bytes: packets shorten texts
        self._setup = packet(pipe.SETUP, told, *astuple(place))
        self._count, self._concurrency = processes, concurrency
        self._limits = CallLimits(timeout_s, grace_s, limit_key, memory_mb or half_mb())
        self._out_of_cpu = out_of_cpu
        self._waiting: deque[Call] = deque()
        self._kind: Kind | None = None

    async def start(self) -> None:
        """Start the children. Raises: ConfigError if the function cannot be imported or adapted; RunError."""
        await self._start_all(self._count)

    def capacity(self, group_size: int) -> int:
        """Groups of `group_size` responses that are scored at once. Call it after `start`."""
        assert self._kind is not None
        if not self._kind.is_async:
            return self._count
        return self._count * max(1, self._concurrency // (group_size if self._kind.is_per_response else 1))

    async def score(self, request: tuple[Any, ...], *, members: int) -> list[float]:
        """The rewards of one request (see process.py) for `members` responses. Raises: ScoringFailed.

        A sync function of one response is called for each response separately, so that each has its own time
        limit.
        """
        assert self._kind is not None
        if self._kind.is_async or not self._kind.is_per_response:
            return await self._ask(request, members=members)
        whole, of_members = request[:WHOLE], request[WHOLE:]
        one_by_one = zip(*of_members, strict=True)
        asked = [self._ask((*whole, *([part] for part in parts)), members=1) for parts in one_by_one]
        return [reward for rewards in await all_of(asked) for reward in rewards]

    async def _ask(self, request: tuple[Any, ...], *, members: int) -> list[float]:
        """Raises: ScoringFailed."""
        loop = asyncio.get_running_loop()
        call = Call(request, members, loop.create_future())
        self._waiting.append(call)
        try:
            while True:
                self._hand_out()
                try:
                    return await call.answer
                except AskAgain as again:
                    call.is_alone = call.is_alone or again.is_alone
                    if isinstance(again, LoopBlocked):
                        self._be_serial()
                    call.answer = loop.create_future()
                    self._waiting.appendleft(call)
                except OutOfCpu as error:
                    if self._out_of_cpu is None:
                        raise
                    logger.warning("%s The response gets %g.", error, self._out_of_cpu)
                    return [self._out_of_cpu] * members
        finally:
            if call in self._waiting:
                self._waiting.remove(call)

    def _be_serial(self) -> None:
        if self._concurrency > 1:
            self._concurrency = 1
            logger.warning(
                "The reward function is async, but blocked its event loop for most of `reward.timeout_s`, so "
                "that calls waited for one another. From now on each process has one group at a time. Await "
                "what blocks, or declare the function without `async` and raise `reward.processes`."
            )

    # -- who scores what --------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Give the oldest calls to the children with the fewest calls, as far as there is room."""
        while self._waiting:
            free = [child for child in self._children if self._has_room(child, self._waiting[0])]
            if not free:
                return
            min(free, key=lambda child: len(child.calls)).send(self._waiting.popleft())

    def _has_room(self, child: RewardChild, call: Call) -> bool:
        if not child.is_open or child.kind is None:
            return False
        if not child.calls:
            return True
        together = [*child.calls.values(), call]
        if not child.kind.is_async or any(one.is_alone for one in together):
            return False
        return sum(_weight(child.kind, one) for one in together) <= self._concurrency

    def _on_answer(self) -> None:
        self._idle_deaths = 0
        self._hand_out()

    # -- of a KeptPool --------------------------------------------------------------------------------------

    def _make(self) -> RewardChild:
        return RewardChild(self._limits, setup=self._setup, on_answer=self._on_answer, on_gone=self._on_gone)

    def _on_started(self, child: RewardChild) -> None:
        self._kind = child.kind
        self._hand_out()

    def _was_idle(self, child: RewardChild) -> bool:
        return not child.calls


def _weight(kind: Kind, call: Call) -> int:
    """Calls of the function that a group takes."""
    return call.members if kind.is_per_response else 1
