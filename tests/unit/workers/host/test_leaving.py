"""A worker that is told to leave before it has begun."""

import argparse
import asyncio
import logging

from workers.host import serve as served
from workers.link.link import Link


async def test_one_that_an_operator_drains_while_it_fetches_the_model_leaves(monkeypatch, caplog):
    caplog.set_level(logging.INFO)

    async def attach(*given: object, **keys: object) -> Link:
        link = Link("inproc://nobody", "reward")
        link.settings = argparse.Namespace(is_private=False)
        return link

    async def fetch(settings: object, link: Link) -> str:
        link.on_drain()  # as the link does where the controller says it
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(Link, "attach", attach)
    monkeypatch.setattr(served, "find_model", fetch)
    monkeypatch.setattr(served, "Overrides", lambda role, overrides: lambda settings: settings)
    options = argparse.Namespace(
        role="reward", overrides=[], name="node1", key=None, parent=None, address="inproc://nobody"
    )
    task = asyncio.create_task(served.serve(options))
    assert await asyncio.wait_for(task, 60.0) == 0
    assert "Leaving before the work began: the operator asks for it." in caplog.text
