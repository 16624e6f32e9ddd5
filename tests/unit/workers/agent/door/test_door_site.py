"""What the application of the door does with a question while its client waits, without a network."""

import asyncio
import json

import pytest

from protocol.settings import SamplingSettings
from workers.agent.door import site
from workers.agent.door.chat_request import read_request
from workers.agent.door.completion import DoorAnswer
from workers.agent.door.desk import DoorDesk
from workers.agent.door.site import EpisodeLost, make_site

ANSWER = DoorAnswer("id", {"role": "assistant", "content": "yes"}, False, 3, 1, None)
BODY = json.dumps({"messages": [{"role": "user", "content": "?"}]}).encode()


class Client:
    """One episode, and requests that are made by calls of the application."""

    def __init__(self):
        self.questions = []
        self.desk = DoorDesk(self._begin)
        self.key = self.desk.open(1)
        readers = {"chat/completions": lambda body: read_request(body, SamplingSettings())}
        self.app = make_site(self.desk, readers)
        self.sent = []
        self.gone = asyncio.Event()
        """Set: the client has gone away."""

    def _begin(self, number, question):
        self.questions.append(question)
        question.begin(given=3)

    async def ask(self, *, before_body=lambda: None, on_sent=lambda: None, retry=0):
        """Status and body of the answer to one request."""
        is_read = []

        async def receive():
            if is_read:
                await self.gone.wait()
                return {"type": "http.disconnect"}
            before_body()
            is_read.append(True)
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def send(message):
            self.sent.append(message)
            on_sent()

        headers = {"authorization": f"Bearer {self.key}", "x-stainless-retry-count": str(retry)}
        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
            "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        self.sent = []
        await self.app(scope, receive, send)
        return self.sent[0]["status"], b"".join(part.get("body", b"") for part in self.sent[1:])

    def answer(self, answer=ANSWER):
        self.questions[-1].settle(answer)


async def test_an_episode_that_ends_while_the_body_comes_is_over():
    client = Client()
    status, told = await client.ask(before_body=lambda: client.desk.close(1))
    assert (status, json.loads(told)["error"]["code"]) == (410, "episode_over")
    assert not client.questions


@pytest.mark.parametrize("is_slow", [False, True])
async def test_an_answer_that_was_sent_is_delivered_and_nobody_waits_for_it_any_more(monkeypatch, is_slow):
    monkeypatch.setattr(site, "SILENCE_S", 0.0 if is_slow else 60.0)
    client = Client()
    ask = client.desk._ask

    def at_once(number, question):
        ask(number, question)
        client.answer()

    if not is_slow:
        client.desk._ask = at_once
    status, told = await client.ask(on_sent=client.answer)
    assert (status, json.loads(told)["choices"][0]["message"]["content"]) == (200, "yes")
    assert told.startswith(b" ") == is_slow
    (question,) = client.questions
    assert (question.is_delivered, question.listeners) == (True, 0)


async def test_a_client_that_went_away_has_got_nothing_and_its_retry_gets_the_answer(monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 0.0)
    client = Client()
    await client.ask(on_sent=client.gone.set)
    (question,) = client.questions
    assert (question.is_delivered, question.listeners) == (False, 0)
    client.gone.clear()
    client.answer()
    assert (await client.ask(retry=1))[0] == 200
    assert client.questions == [question]


async def test_a_client_that_waits_for_an_episode_that_ends_is_cut_off(monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 0.0)
    client = Client()
    with pytest.raises(EpisodeLost):
        await client.ask(on_sent=lambda: client.desk.close(1))
