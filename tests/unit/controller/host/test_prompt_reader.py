"""Prompts are read one request after the other, and their groups are numbered on."""

import asyncio

from controller.config.models import Config
from controller.core.commands import ReadPrompts
from controller.core.events import PromptsRead
from controller.host.prompt_reader import PromptReader


async def read(reader, *, events):
    """The next events that the reader posts, with their rows."""
    heard, notes, done = [], [], asyncio.Event()

    def post(event, rows):
        heard.append((event, rows))
        if len(heard) == events:
            done.set()

    task = asyncio.create_task(reader.run(post, note=notes.append))
    await asyncio.wait_for(done.wait(), 60)
    task.cancel()
    return heard


def rows(count):
    return ({"prompt": str(number)} for number in range(count))


async def test_groups_are_numbered_in_the_order_of_the_data():
    reader = await PromptReader.open(Config(), rows(3), known=None, on_refused=print)
    reader.ask_for(ReadPrompts(2))
    reader.ask_for(ReadPrompts(2))
    (first, two), (second, one) = await read(reader, events=2)
    assert (first, second) == (PromptsRead(0, 2, False), PromptsRead(2, 1, True))
    assert (len(two), len(one)) == (2, 1)
