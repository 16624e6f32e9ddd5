"""The rewards of a run, each in a pool of its own, and their weighted sum.

Invariants: a reward counts for the rows that its `when` names, for all responses to a prompt or for none; if
one of those that count fails, the group fails, and the other rewards' calls for it are cancelled.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import fsum
from typing import Any, NamedTuple, Self

from protocol.messages import MAX_REWARD
from protocol.rewards.kinds import KINDS, FunctionReward, NamedReward
from protocol.settings import RewardSettings
from workers.reward.child import ScoringFailed
from workers.reward.kinds.interface import Place
from workers.reward.pool import RewardPool
from workers.reward.together import all_of

Part = tuple[str, tuple[float, ...]]
"""The name of a reward, and its value for each response."""


class Scored(NamedTuple):
    """The rewards of a group, and the parts that they are summed from."""

    rewards: tuple[float, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    reward: NamedReward
    pool: RewardPool


class RewardMixture:
    """A pool per reward, within `async with`. `field`: the configuration key that names the rewards."""

    def __init__(
        self, rewards: Sequence[NamedReward], settings: RewardSettings,
        *, place: Place, import_paths: Sequence[str] = (), field: str = "reward.function",
    ) -> None:  # fmt: skip
        self._entries = [
            _Entry(one, _make_pool(one, settings, place=place, import_paths=import_paths, field=field))
            for one in rewards
        ]
        self._has_parts = any(not isinstance(one, FunctionReward) for one in rewards) or len(rewards) > 1
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        for entry in self._entries:
            await self._stack.enter_async_context(entry.pool)
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stack.__aexit__(*error)

    async def start(self) -> None:
        """Start all processes. Raises: ConfigError, RunError."""
        async with asyncio.TaskGroup() as tasks:
            for entry in self._entries:
                tasks.create_task(entry.pool.start(), name=f"reward {entry.reward.label}")

    def capacity(self, group_size: int) -> int:
        """Groups of `group_size` responses that are scored at once."""
        return min(entry.pool.capacity(group_size) for entry in self._entries)

    async def score(self, request: tuple[Any, ...], *, members: int) -> Scored:
        """The rewards of a request (see process.py) for `members` responses. Raises: ScoringFailed."""
        counting = [entry for entry in self._entries if not entry.reward.when or self._counts(entry, request)]
        if not counting:
            names = ", ".join(f"`{entry.reward.label}`" for entry in self._entries)
            raise ScoringFailed(
                f"None of the rewards {names} is for this row: expected one whose `when` fits it. Widen a "
                "`when`, or drop such rows."
            )
        values = await all_of(entry.pool.score(request, members=members) for entry in counting)
        weights = [entry.reward.weight for entry in counting]
        sums = tuple(
            fsum(weight * value for weight, value in zip(weights, of_one, strict=True))
            for of_one in zip(*values, strict=True)
        )
        if worst := [reward for reward in sums if not abs(reward) <= MAX_REWARD]:
            raise ScoringFailed(f"The weighted sum is {worst[0]:g}; at most {MAX_REWARD:g} in size counts.")
        parts = zip((entry.reward.label for entry in counting), map(tuple, values), strict=True)
        return Scored(sums, tuple(parts) if self._has_parts else ())

    def _counts(self, entry: _Entry, request: tuple[Any, ...]) -> bool:
        return entry.reward.is_for(json.loads(request[1]))


def _make_pool(
    reward: NamedReward, settings: RewardSettings,
    *, place: Place, import_paths: Sequence[str], field: str,
) -> RewardPool:  # fmt: skip
    kind = KINDS[reward.kind]
    return RewardPool(
        reward, place=place,
        processes=kind.processes or settings.processes, concurrency=kind.concurrency or settings.concurrency,
        timeout_s=reward.timeout_s or settings.timeout_s, limit_key=_limit_key(reward),
        out_of_cpu=kind.out_of_cpu, memory_mb=settings.memory_mb, import_paths=import_paths, field=field,
    )  # fmt: skip


def _limit_key(reward: NamedReward) -> str:
    return f"timeout_s of the reward {reward.label}" if reward.timeout_s else "reward.timeout_s"
