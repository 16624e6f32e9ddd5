"""Which requests are answered on their connection, and that all others reach the application."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from tests.support.door import opened
from workers.agent.door import lane, site
from workers.agent.door.lane import read_head

LIMIT_S = 300
USER = {"role": "user", "content": "hi"}
BODY = json.dumps({"messages": [USER]}).encode()
LINES = ("Host: here", "Authorization: Bearer key", f"Content-Length: {len(BODY)}")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def alone(monkeypatch):
    """The application is not to be asked."""

    def refuse(*_args, **_options):
        pytest.fail("a plain request went to the application")

    monkeypatch.setattr(lane, "AutoHTTPProtocol", refuse)


def head_of(*lines, first="POST /v1/chat/completions HTTP/1.1"):
    return "\r\n".join((first, *lines)).encode("latin-1")


def request(key, body=BODY, *lines):
    own = ("Host: here", f"Authorization: Bearer {key}", f"Content-Length: {len(body)}")
    return head_of(*own, *lines) + b"\r\n\r\n" + body


class Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def say(self, data):
        self.writer.write(data)

    async def hear(self):
        """(status, headers, body) of the next answer."""
        async with asyncio.timeout(LIMIT_S):
            status, headers = await self.hear_head()
            return status, headers, await self.hear_body(headers)

    async def hear_head(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(head[0].split()[1]), dict(line.lower().split(": ", 1) for line in head[1:] if line)

    async def hear_body(self, headers):
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body


@asynccontextmanager
async def connected(counter):
    port = int(counter.door.url.split(":")[2][:-3])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def said(answer):
    status, _, body = answer
    return status, json.loads(body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("first", "key", "is_untrained"),
    [
        ("POST /v1/chat/completions HTTP/1.1", None, False),
        ("POST /untrained/v1/chat/completions HTTP/1.1", None, True),
        ("POST /e/sk-1/chat/completions HTTP/1.1", "sk-1", False),
        ("POST /e/sk-1/v1/chat/completions HTTP/1.1", "sk-1", False),
    ],
)
def test_the_head_of_a_plain_request_is_read_as_the_application_would(first, key, is_untrained):
    more = ("X-Stainless-Retry-Count:  2 ", "IDEMPOTENCY-KEY: a", "Connection: keep-alive", "X-Other: b")
    found = read_head(head_of(*LINES, *more, first=first))
    assert found.body_bytes == len(BODY)
    chat = found.chat
    assert (chat.key, chat.is_untrained, chat.authorization) == (key, is_untrained, "Bearer key")
    assert (chat.is_retry, chat.idempotency_key) == (True, "a")
    assert not read_head(head_of(*LINES, first=first)).chat.is_retry


@pytest.mark.parametrize(
    "head",
    [
        head_of(*LINES, first="GET /v1/models HTTP/1.1"),
        head_of(*LINES, first="GET /v1/chat/completions HTTP/1.1"),
        head_of(*LINES, first="POST /v1/chat/completions HTTP/1.0"),
        head_of(*LINES, first="POST /v1/chat/completions HTTP/1.1 x"),
        head_of(*LINES, first="POST /v1/chat/completions?x=1 HTTP/1.1"),
        head_of(*LINES, first="POST /e/a%20b/chat/completions HTTP/1.1"),
        head_of(*LINES, first="POST /v1/chat/completions"),
        head_of(*LINES[:2]),
        head_of(*LINES[1:]),
        head_of(*LINES, "Transfer-Encoding: chunked"),
        head_of(*LINES, "Expect: 100-continue"),
        head_of(*LINES, "Connection: close"),
        head_of(*LINES, "Connection: Upgrade", "Upgrade: websocket"),
        head_of(*LINES, "Content-Length: 3"),
        head_of(*LINES, "Authorization: Bearer other"),
        head_of(*LINES[:2], "Content-Length: -1"),
        head_of(*LINES[:2], "Content-Length: 1_0"),
        head_of(*LINES[:2], "Content-Length: 99999999999"),
        head_of(*LINES, "a line without a colon"),
        head_of(*LINES, " folded: line"),
        head_of(*LINES, "Content-Length : 3"),
        head_of(*LINES, "X-A: b\nTransfer-Encoding: chunked"),
        head_of(*LINES, "X-A: b\rX"),
        head_of(*LINES, "X-A: \0"),
        b"",
    ],
)
def test_a_head_that_could_mean_anything_else_is_left_to_the_application(head):
    assert read_head(head) is None


def test_requests_of_one_connection_are_answered_in_turn_however_they_are_cut(tokenizer, alone):
    history = [USER, {"role": "assistant", "content": "one"}, USER]
    longer = json.dumps({"messages": history}).encode()

    async def test():
        async with opened(tokenizer, "one", "two") as counter, connected(counter) as client:
            data = request(counter.key) + request(counter.key, longer)
            for place in range(0, len(data), 50):
                client.say(data[place : place + 50])
                await client.writer.drain()
            assert said(await client.hear()) == (200, "one")
            assert said(await client.hear()) == (200, "two")
            assert [(ask.member, ask.number) for ask, _ in counter.asked] == [(0, 0), (0, 1)]
            client.say(request("sk-episode-x"))
            status, headers, body = await client.hear()
            assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
            assert headers["x-should-retry"] == "false"

    asyncio.run(test())


def test_a_connection_goes_on_with_the_application_from_its_first_other_request_on(tokenizer):
    async def test():
        async with opened(tokenizer, "one", "two") as counter, connected(counter) as client:
            other = f"GET /v1/models HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {counter.key}\r\n\r\n"
            client.say(request(counter.key) + other.encode() + request(counter.key))
            assert said(await client.hear()) == (200, "one")
            assert json.loads((await client.hear())[2])["data"][0]["id"] == "policy"
            assert said(await client.hear()) == (200, "two")

    asyncio.run(test())


def test_a_request_that_is_not_whole_in_time_is_the_applications(tokenizer, monkeypatch):
    monkeypatch.setattr(lane, "WHOLE_S", 0.0)

    async def test():
        async with opened(tokenizer, "one") as counter, connected(counter) as client:
            handed = asyncio.Event()
            make = lane.AutoHTTPProtocol
            monkeypatch.setattr(lane, "AutoHTTPProtocol", lambda *a, **o: (handed.set(), make(*a, **o))[1])
            data = request(counter.key)
            client.say(data[:-1])
            async with asyncio.timeout(LIMIT_S):
                await handed.wait()
            client.say(data[-1:])
            assert said(await client.hear()) == (200, "one")

    asyncio.run(test())


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_waits_long_hears_something_until_its_answer_is_there(
    tokenizer, monkeypatch, alone, is_stream
):
    monkeypatch.setattr(site, "SILENCE_S", 0.0)

    async def test():
        async with opened(tokenizer) as counter, connected(counter) as client:
            body = json.dumps({"messages": [USER], "stream": is_stream}).encode()
            client.say(request(counter.key, body))
            status, headers = await client.hear_head()  # before there is an answer
            counter.answer("late")
            told = await client.hear_body(headers)
            assert (status, headers["transfer-encoding"]) == (200, "chunked")
            kind = "text/event-stream; charset=utf-8" if is_stream else "application/json"
            assert headers["content-type"] == kind
            assert told.startswith(b":\n\n" if is_stream else b" ")
            assert b"late" in told
            client.say(request("sk-other"))  # and the connection is as good as before
            assert (await client.hear())[0] == 401

    asyncio.run(test())


def test_an_episode_that_ends_cuts_the_client_that_has_heard_something(tokenizer, monkeypatch, alone):
    monkeypatch.setattr(site, "SILENCE_S", 0.0)

    async def test():
        async with opened(tokenizer) as counter, connected(counter) as client:
            client.say(request(counter.key))
            await client.reader.readuntil(b"\r\n\r\n")
            counter.door.desk.close(1)
            async with asyncio.timeout(LIMIT_S):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await client.hear_body({})

    asyncio.run(test())


def test_a_client_that_goes_away_is_waited_for_no_more_and_its_retry_gets_the_answer(
    tokenizer, monkeypatch, alone
):
    monkeypatch.setattr(site, "SILENCE_S", 60.0)
    left = asyncio.Event()
    lost = lane.DoorLane.connection_lost
    monkeypatch.setattr(lane.DoorLane, "connection_lost", lambda *args: (lost(*args), left.set()))

    async def test():
        async with opened(tokenizer) as counter:
            async with connected(counter) as client:
                client.say(request(counter.key))
                await counter.has_asked(1)
                answering = [task for task in asyncio.all_tasks() if task.get_name() == "chat"]
            async with asyncio.timeout(LIMIT_S):
                await left.wait()
                await asyncio.wait(answering)
            ((question,),) = counter.door.desk._known[1].by_body.values()
            assert (question.listeners, question.is_delivered) == (0, False)
            counter.answer("yes")
            async with connected(counter) as client:
                client.say(request(counter.key, BODY, "x-stainless-retry-count: 1"))
                assert said(await client.hear()) == (200, "yes")
            assert len(counter.asked) == 1

    asyncio.run(test())
