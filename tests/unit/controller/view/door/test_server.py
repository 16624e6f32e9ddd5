"""The server of the view ends when nobody has asked for long."""

import asyncio
import gc

import pytest

from controller.view.door import server
from controller.view.door.listener import listen
from controller.view.door.server import YOUNG, Watched, rarer_collections, serve

LIMIT_S = 60  # ends what hangs
ASKED = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


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


@pytest.mark.parametrize("said", [b"", ASKED[:-2], b"GE", ASKED + b"GE"])
async def test_a_connection_that_asks_for_nothing_gives_its_place_back_and_one_that_waits_keeps_it(
    monkeypatch, said
):
    monkeypatch.setattr(server, "KEPT_S", 0.05)
    let_answer = asyncio.Event()

    async def answer(scope, receive, send):
        if scope["path"] == "/slow":
            await let_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    bound, ready = listen("127.0.0.1", None), asyncio.Event()
    port = bound.getsockname()[1]
    serving = asyncio.create_task(serve(answer, bound, on_ready=ready.set))
    await ready.wait()
    slow, of_slow = await asyncio.open_connection("127.0.0.1", port)
    of_slow.write(ASKED.replace(b"/", b"/slow", 1))
    silent, of_silent = await asyncio.open_connection("127.0.0.1", port)
    of_silent.write(said)
    try:
        async with asyncio.timeout(LIMIT_S):
            told = await silent.read()  # to its end
            assert told.endswith(b"\r\n\r\nok") if said.startswith(ASKED) else told == b""
            let_answer.set()
            assert (await slow.readline()).startswith(b"HTTP/1.1 200")
    finally:
        serving.cancel()
        of_slow.close()
        of_silent.close()
        await asyncio.gather(serving, return_exceptions=True)


def test_the_collector_looks_more_seldom_while_it_serves_and_still_finds_what_is_old():
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with rarer_collections():
        assert gc.get_threshold() == (YOUNG, *before[1:])
        assert gc.isenabled()
        assert gc.get_freeze_count() == frozen
    assert gc.get_threshold() == before
