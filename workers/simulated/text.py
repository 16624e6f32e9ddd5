"""A simulated reward worker: encodes at once, scores after a while; rewards are random.

Invariants: answers are sent in the order of their times; at most one group per process is scored at a time,
the others wait; the same seed gives the same rewards.
"""

import random
from heapq import heappop, heappush
from typing import cast

from protocol import messages
from protocol.messages import Message, ToAnyRole, ToReward
from workers.simulated.link import taken_by_link


class SimulatedReward:
    """Answers Encode and Score."""

    def __init__(
        self,
        seed: int,
        *,
        prompt_tokens: int,
        score_s: float,
        attach_s: float,
        processes: int = 1,
        now: float = 0.0,
    ) -> None:
        self._rng = random.Random(seed)
        self._free_s = [now] * processes  # when each process is free; a heap
        self._prompt_tokens, self._score_s = prompt_tokens, score_s
        self._due: list[tuple[float, int, Message]] = [(now + attach_s, 0, messages.Ready(0, 0, 0))]
        self._count = 0

    def next_wake_s(self) -> float | None:
        """The time of its next answer."""
        return self._due[0][0] if self._due else None

    def handle(self, now: float, command: Message) -> list[Message]:
        """Handle one command; returns the immediate messages."""
        order = cast("ToReward | ToAnyRole", command)
        match order:
            case messages.Encode(groups):
                return [messages.PromptsEncoded(tuple((g, self._prompt_tokens) for g in groups), ())]
            case messages.Score(group, attempt, items):
                rewards = tuple(self._rng.random() for _ in items)
                self._count += 1
                scored = messages.GroupScored(group, attempt, rewards)
                done_s = max(now, heappop(self._free_s)) + self._score_s
                heappush(self._free_s, done_s)
                heappush(self._due, (done_s, self._count, scored))
            case _:
                taken_by_link(order)
        return []

    def wake(self, now: float) -> list[Message]:
        """Answers that are due by now."""
        out: list[Message] = []
        while self._due and self._due[0][0] <= now:
            out.append(heappop(self._due)[2])
        return out
