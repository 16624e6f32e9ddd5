"""Sessions with a server that speaks as OpenEnv's does: 0.2 says that it is full, 0.3 only closes."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from protocol.errors import ConfigError
from workers.agent.kinds.openenv_wire import OpenEnvSession, Refusal, base_url, check_sessions
from workers.agent.policy import EnvironmentFailed

websockets = pytest.importorskip("websockets.asyncio.server", reason="pip install -e '.[openenv]'")


class Server:
    """Admits so many sessions; adds up the numbers that it is sent."""

    def __init__(self, sessions, *, is_silent=False):
        self._places, self._is_silent, self.seen = sessions, is_silent, []

    async def serve(self, socket):
        if self._places == 0:
            if not self._is_silent:
                told = {"message": "8 of 8", "code": "CAPACITY_REACHED"}
                await socket.send(json.dumps({"type": "error", "data": told}))
            return
        self._places -= 1
        try:
            async for raw in socket:
                await socket.send(self.answer(json.loads(raw)))
        finally:
            self._places += 1

    tools: ClassVar = {"result": {"tools": [{"name": "add"}]}}

    def answer(self, message):
        self.seen.append(message)
        match message["type"], message.get("data"):
            case "state", _:
                said = {"type": "state", "data": {"step_count": 0}}
            case "mcp", {"method": "tools/list", "id": number}:
                said = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": number, **self.tools}}
            case "reset", _:
                said = {"type": "observation", "data": {"observation": {"text": "go"}}}
            case _, {"text": "bad"}:
                errors = [{"msg": "a number, please"}]
                said = {"type": "error", "data": {"code": "VALIDATION_ERROR", "errors": errors}}
            case _, {"text": "vague", "errors": errors}:
                said = {
                    "type": "error",
                    "data": {"code": "VALIDATION_ERROR", "message": "no", "errors": errors},
                }
            case _, {"text": "die"}:
                said = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "boom"}}
            case _, {"text": "odd"}:
                said = {"type": "observation", "data": {"board": 1}}
            case _, {"text": "garbage"}:
                return "<html>"
            case _, data:
                said = {"observation": {"text": data["text"]}, "reward": 1, "done": True}
                said = {"type": "observation", "data": said}
        return json.dumps(said)


@asynccontextmanager
async def serving(server):
    async with websockets.serve(server.serve, "127.0.0.1", 0) as running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/"


async def test_a_session_is_reset_and_stepped():
    server = Server(1)
    async with serving(server) as address:
        session = OpenEnvSession(address)
        assert await session.reset({"seed": 3}) == {
            "observation": {"text": "go"},
            "reward": None,
            "done": False,
        }
        found = await session.step({"text": "ok"})
        assert (found["observation"], found["reward"], found["done"]) == ({"text": "ok"}, 1, True)
        await session.close()
    assert server.seen[0] == {"type": "reset", "data": {"seed": 3}}


async def test_what_does_not_fit_is_the_policys_and_all_else_the_environments():
    async with serving(Server(9)) as address:
        for text, kind, words in (
            ("bad", Refusal, "a number, please"),
            ("die", EnvironmentFailed, r"failed: boom \(EXECUTION_ERROR\)"),
            ("odd", EnvironmentFailed, "expected `observation`"),
            ("garbage", EnvironmentFailed, "said no JSON"),
        ):
            session = OpenEnvSession(address)
            await session.reset({})
            with pytest.raises(kind, match=words):
                await session.step({"text": text})
            await session.close()


@pytest.mark.parametrize("errors", ["a text", [3, "word"], {"msg": "x"}, 7])
async def test_a_refusal_whose_errors_are_of_another_form_has_its_message(errors):
    async with serving(Server(9)) as address:
        session = OpenEnvSession(address)
        await session.reset({})
        with pytest.raises(Refusal, match=r"^no$"):
            await session.step({"text": "vague", "errors": errors})
        await session.close()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_session_too_many_is_named_when_it_is_probed_and_when_it_happens(is_silent):
    async with serving(Server(8, is_silent=is_silent)) as address:
        await check_sessions(address, 8)
        with pytest.raises(ConfigError, match=r"admits 8 sessions at once, and agent.concurrency is 9. Set"):
            await check_sessions(address, 9)
    async with serving(Server(0, is_silent=is_silent)) as address:
        with pytest.raises(ConfigError, match="admits no session"):
            await check_sessions(address, 2)
        session = OpenEnvSession(address)
        with pytest.raises(EnvironmentFailed, match=r"no place for one more session|closed the session"):
            await session.reset({})
        await session.close()


async def test_a_server_that_is_gone_is_the_environments_fault():
    session = OpenEnvSession("http://127.0.0.1:9")
    with pytest.raises(EnvironmentFailed, match="cannot be reached"):
        await asyncio.wait_for(session.reset({}), 300)
    await session.close()


def test_an_address_is_taken_in_any_form():
    for address in ("http://h:1", "http://h:1/", "ws://h:1/ws"):
        assert base_url(address) == "http://h:1"
    assert base_url("wss://h/ws/") == "https://h"


async def test_tools_are_listed_and_a_server_without_them_is_named():
    server = Server(2)
    async with serving(server) as address:
        session = OpenEnvSession(address)
        await session.reset({})
        assert await session.tools() == [{"name": "add"}]
        server.tools = {"error": {"code": -32603, "message": "Environment does not support MCP"}}
        with pytest.raises(
            EnvironmentFailed, match=r"which tools it has: 'Environment does not support MCP'"
        ):
            await session.tools()
        await session.close()
