"""The server of the view ends when nobody has asked for long."""

import asyncio
import gc

from controller.view.door.server import YOUNG, Watched, rarer_collections


async def test_a_server_that_nobody_asks_is_idle_and_one_request_that_is_open_keeps_it():
    idle, going_on = asyncio.Event(), asyncio.Event()

    async def answer(scope, receive, send):
        await going_on.wait()

    watched = Watched(answer)
    loop, timers = asyncio.get_running_loop(), []
    real = loop.call_later
    loop.call_later = lambda delay, act: timers.append(real(0, act)) or timers[-1]
    watched.when_idle(300.0, idle.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(watched({}, None, None))
        group.create_task(watched({}, None, None))
        await asyncio.sleep(0)
        assert timers[0].cancelled()
        assert len(timers) == 1, "two requests are open"
        going_on.set()
    await idle.wait()
    assert len(timers) == 2, "the last one that ended began to wait"


def test_the_collector_looks_more_seldom_while_it_serves_and_still_finds_what_is_old():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rarer_collections():
        assert gc.get_threshold() == (YOUNG, *before[1:])
        assert gc.isenabled()
        assert gc.get_freeze_count() == frozen
    assert gc.get_threshold() == before
