"""What the door makes of bytes that no client of OpenAI's would send."""

import asyncio
import json

import pytest

from tests.support.chat_tokenizer import make_tokenizer
from tests.support.door import opened
from workers.agent.door import site

USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


async def send(counter, body, *, method="POST", path="/v1/chat/completions", key=None, head=()):
    """(status, headers, body) of what is answered to a request as it stands."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: door", f"Authorization: Bearer {key or counter.key}", *head]
    if not any("ength" in line or "hunked" in line for line in head):
        lines.append(f"Content-Length: {len(body)}")
    return await exchange(counter, "\r\n".join([*lines, "", ""]).encode() + body)


async def exchange(counter, data):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(counter.door.url.split(":")[2][:-3]))
    try:
        writer.write(data)
        async with asyncio.timeout(300):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    finally:
        writer.close()
        await writer.wait_closed()


def asking(**fields):
    return {"model": "m", "messages": [USER], **fields}


def with_message(**message):
    return {"messages": [USER, {"role": "user", **message}]}


CALLS = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ("a", "a")]
BAD = {
    "void": (b"", "no JSON"),
    "truncated": (b'{"messages": [', "no JSON"),
    "deep": (b"[" * 100_000, "nested too deep"),
    "deep within": (b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}", "nested too deep"),
    "not UTF-8": (b'{"messages": "\xff\xfe"}', "no JSON in UTF-8"),
    "not a number": (b'{"messages": [], "temperature": NaN}', "NaN is no number"),
    "a list": ([1], "expected a JSON object"),
    "no messages": ({"model": "m"}, "`messages` is missing"),
    "messages of none": (asking(messages=[]), "at least one chat message"),
    "assistant last": (asking(messages=[USER, {"role": "assistant", "content": "a"}]), "the assistant's own"),
    "unknown role": (with_message(role="root", content="a"), "the role 'root'"),
    "a tool without its call": (
        with_message(role="tool", tool_call_id="x", content="a"), "the tool call 'x', which no message"
    ),
    "calls of one id": (
        asking(messages=[USER, {"role": "assistant", "tool_calls": CALLS}, USER]), "two tool calls of one id"
    ),
    "an image": (with_message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "Images and"),
    "n": (asking(n=2), "`n` is 2"),
    "n that is true": (asking(n=True), "`n` is True"),
    "no tokens": (asking(max_tokens=0), "`max_tokens` is 0"),
    "fewer than no tokens": (asking(max_completion_tokens=-1), "`max_completion_tokens` is -1"),
    "half a token": (asking(max_tokens=1.5), "`max_tokens` is 1.5"),
    "temperature": (asking(temperature=0), "`temperature` is 0; this run samples with 1.0"),
    "top_p": (asking(top_p=0.9), "`top_p` is 0.9"),
    "a penalty": (asking(presence_penalty=1), "`presence_penalty` is 1; this run samples with 0"),
    "stop": (asking(stop=["END"]), "`stop` is ['END']"),
    "bias": (asking(logit_bias={"1": 5}), "`logit_bias`"),
    "a schema": (asking(response_format={"type": "json_object"}), "`response_format`"),
    "a function's name": (asking(tools=[{"type": "function"}]), "`tools` is"),
    "old functions": (asking(functions=[]), "`functions` is no field that is supported"),
    "a template": (asking(chat_template_kwargs={"a": 1}), "set `data.chat_template_kwargs`, or a column"),
    "stream": (asking(stream="yes"), "`stream` is 'yes'; expected true or false"),
    "a model of no text": (asking(model=3), "`model` is 3; expected text"),
}  # fmt: skip


def test_bad_bodies_are_refused_in_words_and_nothing_is_sampled_for_them(tokenizer):
    async def test():
        async with opened(tokenizer, "yes") as counter:
            for name, (body, words) in BAD.items():
                status, headers, told = await send(counter, body)
                error = json.loads(told)["error"]
                assert (status, words in error["message"]) == (400, True), (name, error)
                assert error["type"] == "invalid_request_error"
                assert headers["x-should-retry"] == "false"
            assert counter.asked == []
            assert (await send(counter, asking()))[0] == 200

    asyncio.run(test())


def test_lone_surrogates_become_characters_that_can_be_encoded(tokenizer):
    async def test():
        async with opened(tokenizer, "yes") as counter:
            tool = {"type": "function", "function": {"name": "f", "description": "\udc00"}}
            asked = asking(messages=[{"role": "user", "content": "\ud83d!"}], tools=[tool])
            assert (await send(counter, json.dumps(asked).encode()))[0] == 200
            assert tokenizer.decode(counter.asked[0][1]).count("!") == 1

    asyncio.run(test())


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (
            {"path": "/v1/responses/compact"},
            404,
            "expected /v1/chat/completions, /v1/responses or /v1/models",
        ),
        ({"path": "/v1/responses"}, 400, "A request with `messages` goes to /v1/chat/completions"),
        ({"method": "GET"}, 405, "GET is not possible"),
        ({"key": "sk-episode-" + "0" * 64}, 401, "none of an episode"),
        ({"key": " "}, 401, "none of an episode"),
        ({"key": "\u00e9".encode().decode("latin-1")}, 401, "none of an episode"),
    ],
)
def test_other_places_methods_and_keys_are_refused(tokenizer, options, status, words):
    async def test():
        async with opened(tokenizer) as counter:
            found, _, told = await send(counter, asking(), **options)
            assert (found, words in json.loads(told)["error"]["message"]) == (status, True), told

    asyncio.run(test())


def test_a_body_that_is_too_large_or_never_complete_ends(tokenizer, monkeypatch):
    monkeypatch.setattr(site, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(site, "BODY_LIMIT_S", 0.1)

    async def test():
        async with opened(tokenizer) as counter:
            found = [
                await send(counter, b"x" * 2000),
                await send(counter, b"{", head=["Content-Length: 100"]),
                await send(counter, b"1\r\n{\r\n", head=["Transfer-Encoding: chunked"]),
            ]
            assert [status for status, _, _ in found] == [413, 408, 408]
            assert all(headers["connection"] == "close" for _, headers, _ in found)

    asyncio.run(test())


def test_three_equal_requests_with_one_idempotency_key_are_one_and_a_client_that_goes_takes_nothing(
    tokenizer,
):
    async def test():
        async with opened(tokenizer) as counter:
            head = ["Idempotency-Key: one"]
            gone = asyncio.create_task(send(counter, asking(), head=head))
            await counter.has_asked(1)
            gone.cancel()
            waiting = [asyncio.create_task(send(counter, asking(), head=head)) for _ in range(2)]
            counter.answer("yes")
            bodies = {(await one)[2] for one in waiting}
            assert len(bodies) == len(counter.asked) == 1
            status, _, told = await send(counter, asking(user="x"), head=head)
            assert (status, json.loads(told)["error"]["code"]) == (400, "idempotency_error")

    asyncio.run(test())


def test_with_other_sampling_ignored_the_runs_own_is_used_and_each_field_is_said_once(tokenizer, caplog):
    async def test():
        async with opened(tokenizer, "yes", "no", other_sampling="ignore") as counter:
            assert (await send(counter, asking(temperature=0, stop="x")))[0] == 200
            again = [USER, {"role": "assistant", "content": "yes"}, USER]
            asked = asking(messages=again, stop="x", response_format={"type": "json_object"})
            assert (await send(counter, asked))[0] == 200

    with caplog.at_level("WARNING"):
        asyncio.run(test())
    first, second = caplog.messages
    assert "another temperature, stop than" in first
    assert "another response_format than" in second


@pytest.mark.parametrize("version", ["", "/v1"])
def test_a_key_in_the_path_is_checked_as_one_in_the_header_which_is_not_looked_at(tokenizer, version):
    async def test():
        async with opened(tokenizer, "yes") as counter:
            first, second = counter.key, counter.begin(2)
            chat, models = f"{version}/chat/completions", f"{version}/models"
            status, _, told = await send(counter, asking(), path=f"/e/{second}{chat}", key=first)
            assert (status, json.loads(told)["choices"][0]["message"]["content"]) == (200, "yes")
            assert counter.asked[-1][0].group == 2
            assert (await send(counter, b"", method="GET", path=f"/e/{second}{models}", key="none"))[0] == 200
            for key in ("none", first[:-1], f"{first}0"):
                status, _, told = await send(counter, asking(), path=f"/e/{key}{chat}", key=first)
                assert (status, json.loads(told)["error"]["code"]) == (401, "invalid_api_key")
            counter.door.desk.close(2)
            status, _, told = await send(counter, asking(), path=f"/e/{second}{chat}", key=first)
            assert (status, json.loads(told)["error"]["code"]) == (410, "episode_over")
            assert len(counter.asked) == 1

    asyncio.run(test())
