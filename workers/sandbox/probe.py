"""Tests whether a sandbox works on this machine, in a process of `protocol.asking`."""

import asyncio
from collections.abc import Mapping

from protocol.errors import ConfigError
from workers.sandbox.chosen_box import Choice, open_box


def answer(question: Mapping[str, Choice]) -> str:
    """Why the `choice` does not work; "" if it ran a program."""
    return asyncio.run(_try(question["choice"]))


async def _try(choice: Choice) -> str:
    try:
        box = await open_box(choice)
    except ConfigError as error:
        return str(error)
    await box.close()
    return ""
