"""Clients for agents that are given one: of which package, and past which proxy."""

import asyncio

import pytest

from workers.agent.door import http_client
from workers.agent.door.http_client import DOOR, find_client


@pytest.mark.parametrize("packages", [{"openai": "DefaultAsyncHttpxClient"}, {"httpx2": "AsyncClient"}])
def test_a_client_is_the_one_that_openai_takes_and_asks_no_proxy_for_the_door(monkeypatch, packages):
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    monkeypatch.setattr(http_client, "PACKAGES", packages)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    asked = []

    async def answer(reader, writer):
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def test():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, find_client()() as client:
            port = server.sockets[0].getsockname()[1]
            assert openai.AsyncOpenAI(base_url="http://x", api_key="k", http_client=client)
            assert (await client.get(f"{DOOR}:{port}/there")).json() == {}
            assert set(client.timeout.as_dict().values()) == {None}, "the policy takes as long as it takes"
        assert client.is_closed

    asyncio.run(test())
    assert asked == [b"/there"]


def test_without_a_package_there_is_none(monkeypatch):
    monkeypatch.setattr(http_client, "PACKAGES", {"no_such_package": "AsyncClient"})
    assert find_client() is None


def test_a_package_that_has_no_client_is_passed_over(monkeypatch):
    pytest.importorskip("httpx2", reason="the package httpx2 is not installed")
    monkeypatch.setattr(http_client, "PACKAGES", {"json": "AsyncClient", "httpx2": "AsyncClient"})
    assert type(find_client()()).__name__ == "AsyncClient"
