"""Shares one answer among equal requests of about one time, so that many pages cost little more than one.

Invariants: an answer is reused for LIVES times the seconds that it took, and at most for MOST_LIFE_S; equal
requests meanwhile wait for it; answers with another status than 200 are not reused; expired answers are
dropped."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

LIVES = 3  # times the seconds that it took to make: the same is made in a quarter of the time at most
MOST_LIFE_S = 0.3  # else what a page shows would be older than a second
DONE = 200


class Made(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes


class SharedAnswers:
    """Answers of one site, by request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that only grow."""
        self._clock = clock
        self._going: dict[str, asyncio.Task[Made]] = {}
        self._young: dict[str, tuple[float, Made]] = {}  # with the second up to which it is

    async def get(self, asked: str, make: Callable[[], Awaitable[Made]]) -> Made:
        """The answer of `make`, or a young one to an equal request. Raises: the errors of `make`."""
        now = self._clock()
        self._young = {key: found for key, found in self._young.items() if now < found[0]}
        if asked in self._young:
            return self._young[asked][1]
        going = self._going.get(asked)
        if going is None:
            going = asyncio.create_task(self._make(asked, make), name=f"answer to {asked[:80]}")
            self._going[asked] = going
        return await asyncio.shield(going)  # one who goes away takes it from nobody else

    async def _make(self, asked: str, make: Callable[[], Awaitable[Made]]) -> Made:
        began = self._clock()
        try:
            made = await make()
        finally:
            del self._going[asked]
        if made.status == DONE:
            now = self._clock()
            self._young[asked] = now + min(MOST_LIFE_S, LIVES * (now - began)), made
        return made
