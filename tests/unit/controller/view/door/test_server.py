"""The server of the view ends when nobody has asked for long."""

import asyncio

from controller.view.door.server import Watched


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
