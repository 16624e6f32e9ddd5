"""Concurrent calls that succeed or fail together."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

Result = TypeVar("Result")


async def all_of(calls: Iterable[Awaitable[Result]]) -> list[Result]:
    """The results in order; as soon as one raises, the others are cancelled, and it is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
