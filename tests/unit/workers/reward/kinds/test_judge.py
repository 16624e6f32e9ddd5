"""The reward `judge` against a stub endpoint: numbers become rewards, and nothing else does."""

import asyncio
import contextlib
import json
import re
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="pip install 'staleflow[judge]'")

from protocol.errors import ConfigError
from protocol.rewards.kinds import Criterion, JudgeReward
from workers.reward.kinds.interface import Place, Unscorable
from workers.reward.kinds.judge import fill, make
from workers.reward.kinds.judge_cache import JudgeCache

Answer = tuple[int, bytes]


def says(text: Any, *, ending: str = "stop") -> Answer:
    choice = {"message": {"content": text}, "finish_reason": ending}
    return 200, json.dumps({"choices": [choice]}).encode()


class Endpoint:
    """Answers requests on localhost, the first ones as it is told, the others with 7."""

    def __init__(self) -> None:
        self.answers: list[Answer | None] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.in_flight = self.most_in_flight = 0
        self.gate: asyncio.Event | None = None
        self.crowded = asyncio.Event()  # three are in flight
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while request := await self._request(reader):
                head, body = request
                self.asked.append(json.loads(body))
                self.keys += [key.decode() for key in re.findall(rb"(?i)authorization: bearer (\S+)", head)]
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                if self.in_flight == 3:
                    self.crowded.set()
                if self.gate is not None:
                    await self.gate.wait()
                answer = self.answers.pop(0) if self.answers else says("Fine. 7")
                self.in_flight -= 1
                if answer is None:
                    break
                status, said = answer
                header = f"HTTP/1.1 {status} x\r\nContent-Length: {len(said)}\r\nRetry-After: 0\r\n\r\n"
                writer.write(header.encode() + said)

    async def _request(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes] | None:
        """Head and body of the next request; None where the client has left, also in the middle of one."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])  # type: ignore[index]
            return head, await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


@pytest.fixture
async def endpoint(monkeypatch) -> AsyncIterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
def judged(endpoint, tmp_path) -> Callable[..., Any]:
    """Scores one response with a judge of these options."""

    async def score(
        completion: str = "good", *, question: Any = "Why?", columns: Any = (), **options: Any
    ) -> float:
        settings = {"base_url": f"http://127.0.0.1:{endpoint.port}/v1", "model": "m", "backoff_s": 0.0}
        function = make(JudgeReward(**{**settings, **options}), Place(str(tmp_path)))
        try:
            return await function(completion, question, **dict(columns))
        finally:
            await function.close()

    return score


async def test_a_number_becomes_a_reward_and_the_key_comes_from_the_environment(
    endpoint, judged, monkeypatch
):
    monkeypatch.setenv("MY_KEY", "secret-1")
    assert await judged("because", api_key_env="MY_KEY", body={"seed": 3}) == 0.7
    ((asked,), keys) = endpoint.asked, endpoint.keys
    assert keys == ["secret-1"]
    assert (asked["model"], asked["temperature"], asked["seed"]) == ("m", 0.0, 3)
    assert "Question:\nWhy?\n\nResponse:\nbecause" in asked["messages"][0]["content"]


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ((429, b"slow down"), "it answered 429: slow down"),
        ((500, b"oh"), "it answered 500: oh"),
        ((200, b"<html>"), "which is no chat completion"),
        ((200, b'{"choices": []}'), "which is no chat completion"),
        (says(None), "the answer's content is NoneType"),
        (says("I cannot say"), "has no number"),
        (says("100"), "100 is not from 0 to 10"),
        (says("nan"), "has no number"),
        (says("I look at the scale /10"), "has no number"),
        (says("4 would be too harsh, as", ending="length"), "cut off; raise `max_tokens` of this reward"),
        (None, "the request ended with RemoteProtocolError"),
        ((200, b'{"choices": ' + b"[" * 100_000), "which is no chat completion"),
    ],
    ids=["429", "500", "html", "empty", "null", "words", "range", "nan", "scale", "cut", "nothing", "deep"],
)  # fmt: skip
async def test_trouble_is_asked_again_and_never_a_reward(endpoint, judged, trouble, words):
    endpoint.answers = [trouble] * 2
    assert await judged(retries=2, cache=False) == 0.7
    assert len(endpoint.asked) == 3
    endpoint.answers = [trouble] * 3
    with pytest.raises(Unscorable) as raised:
        await judged(retries=2, cache=False)
    assert words in str(raised.value)
    assert "gave no number in 3 requests" in str(raised.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is wrong in most places. Score: 3/10", 3),
        ("Rating: 2 out of 10.", 2),
        ("**4/10**", 4),
        ("**4**/10", 4),
        ("\\boxed{4} / 10", 4),
        ("8.5 / 10", 8.5),
        ("4 (out of 10)", 4),
        ("4 points out of **10**", 4),
        ("4 of 10", 4),
        ("Score (out of 10): 4", 4),
        ("Score, /10: 4", 4),
        ("On a scale of 0 to 10, I give 7 out of 10", 7),
        ("I give it a 7 on a scale from 0 to 10.", 7),
        ("A 7 on a 1-10 scale", 7),
        ("7 (0–10)", 7),  # noqa: RUF001
        ("From 8 to 6, as it is long: 6", 6),
        ("I lower it from 8 to 6", 6),
        ("7/10, judged on 2026-05-03", 7),
        ("7/10, judged on 3/5/2026", 7),
        ("Helpfulness: 3/10\nIn all: a score of 6", 6),
        ("10/10", 10),
        ("0", 0),
    ],
)
async def test_the_end_of_a_scale_is_no_grade(endpoint, judged, text, number):
    endpoint.answers = [says(text)]
    assert await judged() == pytest.approx(number / 10)
    assert len(endpoint.asked) == 1


async def test_a_number_read_by_another_pattern_is_asked_for_again(endpoint, judged):
    endpoint.answers = [says("3/9"), says("3/9")]
    assert [await judged(number=r"(\d+)"), await judged(), await judged()] == [0.9, 0.3, 0.3]
    assert len(endpoint.asked) == 2


async def test_a_request_that_is_refused_is_not_sent_again(endpoint, judged):
    endpoint.answers = [(401, b"who are you?")]
    with pytest.raises(
        Unscorable, match=r"it answered 401: who are you.* The key is read from OPENAI_API_KEY"
    ):
        await judged()
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("ending", ["\n", " \r\n"])
async def test_a_key_is_sent_without_the_line_end_of_its_file(endpoint, judged, monkeypatch, ending):
    monkeypatch.setenv("MY_KEY", f"secret-1{ending}")
    assert await judged(api_key_env="MY_KEY") == 0.7
    assert endpoint.keys == ["secret-1"]


@pytest.mark.parametrize("key", ["secret 1", "secret-1\nX: y", "secr\u00e9t"])
async def test_what_is_no_key_is_refused_and_not_told(judged, monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(ConfigError, match="environment variable MY_KEY holds white space") as raised:
        await judged(api_key_env="MY_KEY")
    assert "secr" not in str(raised.value)


async def test_a_url_without_a_protocol_is_asked_once_and_said_so(judged):
    with pytest.raises(Unscorable, match=r"cannot be asked: .* Expected http://HOST:PORT/v1"):
        await judged(base_url="127.0.0.1:8000/v1", retries=4)


async def test_an_answer_that_comes_byte_by_byte_ends_with_its_request(judged):
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 200000\r\n\r\n")
            for _ in range(200_000):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(Unscorable, match=r"took longer than `request_s` = 0\.05 s"):
        await judged(base_url=url, retries=0, request_s=0.05)
    server.close()


async def test_nobody_there_is_a_failure(endpoint, judged):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and never listens
        with pytest.raises(Unscorable, match="the request ended with ConnectError"):
            await judged(base_url=f"http://127.0.0.1:{held.getsockname()[1]}", retries=1)


async def test_what_was_judged_is_not_asked_again_also_by_another_process(endpoint, judged):
    assert [await judged("a"), await judged("a"), await judged("b")] == [0.7] * 3
    assert len(endpoint.asked) == 2
    assert await judged("a", model="other") == 0.7
    assert len(endpoint.asked) == 3


async def test_equal_responses_at_once_are_judged_once_and_alike(endpoint, tmp_path):
    base_url = f"http://127.0.0.1:{endpoint.port}/v1"
    function = make(JudgeReward(base_url=base_url, model="m"), Place(str(tmp_path)))
    endpoint.answers = [says(str(number)) for number in range(1, 5)]
    left = asyncio.ensure_future(function("a", "Why?"))
    others = [asyncio.ensure_future(function("a", "Why?")) for _ in range(3)]
    await asyncio.sleep(0)
    left.cancel()  # its group was given up
    assert await asyncio.gather(*others) == [0.1] * 3
    assert len(endpoint.asked) == 1
    await function.close()


def test_processes_that_open_a_new_cache_at_once_all_have_it(tmp_path, caplog, monkeypatch):
    """SQLite does not wait where another has begun to write and the mode of the journal is to change."""
    holder, pauses = sqlite3.connect(tmp_path / "judge.db", isolation_level=None), list[float]()
    holder.execute("BEGIN IMMEDIATE")

    def pause(s):
        pauses.append(s)
        holder.execute("COMMIT")

    monkeypatch.setattr("time.sleep", pause)
    cache = JudgeCache(str(tmp_path))
    assert not caplog.records
    cache.put("a", 1.0)
    assert not cache._numbers
    assert len(pauses) == 1
    cache.close()


async def test_without_a_cache_every_response_is_judged_anew(endpoint, tmp_path):
    base_url = f"http://127.0.0.1:{endpoint.port}/v1"
    function = make(JudgeReward(base_url=base_url, model="m", cache=False), Place(str(tmp_path)))
    endpoint.answers = [says("2"), says("4")]
    assert [await function("a", "Why?"), await function("a", "Why?")] == [0.2, 0.4]
    await function.close()


async def test_a_cache_keeps_no_number_in_memory_that_its_file_has_and_few_without_a_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("workers.reward.kinds.judge_cache.MOST_IN_MEMORY", 2)
    kept, alone = JudgeCache(str(tmp_path)), JudgeCache("")
    for cache in (kept, alone):
        for number in range(3):
            cache.put(str(number), number)
    assert [kept.get(str(number)) for number in range(4)] == [0, 1, 2, None]
    assert [alone.get(str(number)) for number in range(4)] == [None, 1, 2, None]
    assert not kept._numbers
    kept.close()
    kept.put("later", 5.0)
    assert kept.get("later") == 5.0


async def test_a_damaged_cache_costs_requests_and_nothing_else(endpoint, judged, tmp_path):
    (tmp_path / "judge.db").write_bytes(b"no database" * 100)
    assert [await judged("a"), await judged("a")] == [0.7] * 2
    assert len(endpoint.asked) == 2


async def test_a_rubric_is_the_weighted_mean_of_its_criteria(endpoint, judged):
    endpoint.answers = [says("10"), says("0")]
    rubric = (Criterion(criterion="It is short.", weight=3.0), Criterion(criterion="It is kind."))
    prompt = "{completion}: {criterion}"
    assert await judged(prompt=prompt, rubric=rubric, concurrency=1) == 0.75
    assert [one["messages"][0]["content"] for one in endpoint.asked] == [
        "good: It is short.",
        "good: It is kind.",
    ]


async def test_where_a_criterion_has_no_grade_the_others_are_not_asked_for(endpoint, tmp_path):
    rubric = tuple(Criterion(criterion=word) for word in ("short", "kind", "true"))
    options = JudgeReward(
        base_url=f"http://127.0.0.1:{endpoint.port}/v1", model="m", rubric=rubric, concurrency=1,
        prompt="{completion}: {criterion}",
    )  # fmt: skip
    function = make(options, Place(str(tmp_path)))
    endpoint.answers = [(400, b"no such model")]
    with pytest.raises(Unscorable, match="refuses the request"):
        await function("good", "Why?")
    left = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
    await function.close()
    assert "_grade" not in left


async def test_the_prompt_is_a_column_like_others(endpoint, judged):
    talk = [{"role": "user", "content": "Why?"}]
    await judged(prompt="{prompt} {completion}", question=talk)
    assert endpoint.asked[0]["messages"][0]["content"] == "user: Why? good"


async def test_no_more_requests_are_in_flight_than_allowed(endpoint, tmp_path):
    settings = {"base_url": f"http://127.0.0.1:{endpoint.port}", "model": "m", "concurrency": 3}
    score = make(JudgeReward(**settings), Place(""))
    endpoint.gate = asyncio.Event()
    asked = asyncio.gather(*(score(str(number), "?") for number in range(9)))
    await endpoint.crowded.wait()
    endpoint.gate.set()
    assert await asked == [0.7] * 9
    assert endpoint.most_in_flight == 3
    await score.close()


def test_a_response_that_looks_like_a_template_stays_what_it_is():
    fields = {"completion": "{answer} {question}", "answer": "7", "a": {"b": 1}}
    assert fill("{completion} {answer} {a.b} {{x}", fields | {"x": 0}) == "{answer} {question} 7 1 {0"
    with pytest.raises(Unscorable, match=r"has \{gold\}, and the row has no such column"):
        fill("{gold}", fields)


def test_a_judge_may_be_asked_of_the_whole_conversation():
    options = JudgeReward(base_url="http://here/v1", model="m", prompt="How good is this?\n{messages}")
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert fill(options.prompt, {"messages": talk}) == "How good is this?\nuser: hi\n\nassistant: ho"
    with pytest.raises(ValueError, match=r"expected \{completion\} in it, where the response is"):
        JudgeReward(base_url="http://here/v1", model="m", prompt="How good is {answer}?")


def test_a_judge_sees_the_tool_calls_of_a_conversation():
    calls = [{"id": id, "function": {"name": "add", "arguments": '{"a": 1}'}} for id in "ab"]
    talk = [
        {"role": "assistant", "content": "", "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
        {"role": "assistant", "content": "Again.", "tool_calls": calls},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "of a row"}]},
    ]
    assert fill("{messages}", {"messages": talk}).split("\n\n") == [
        'assistant: add({"a": 1})',
        "tool: 2",
        'assistant: Again.\nadd({"a": 1})\nadd({"a": 1})',
        "assistant: {'name': 'of a row'}",
    ]
