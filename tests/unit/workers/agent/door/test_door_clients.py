"""The unchanged `openai` package as a client of the door, sync and async."""

import asyncio
import random

import pydantic
import pytest

from tests.support.chat_tokenizer import make_tokenizer
from tests.support.door import opened
from workers.agent.door import site

openai = pytest.importorskip(
    "openai", reason="the package openai is not installed (pip install -e '.[test]')"
)
QUESTION = {"role": "user", "content": "2+3?"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a":  2}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def client(counter, key=None, **options):
    options = {"timeout": 300, "max_retries": 0} | options
    return openai.AsyncOpenAI(base_url=counter.door.url, api_key=key or counter.key, **options)


async def say(one, *messages, **options):
    return await one.chat.completions.create(model="any", messages=[QUESTION, *messages], **options)


def test_the_sync_client_plays_two_turns_with_a_tool_call_and_nothing_is_encoded_twice(tokenizer):
    def play(url, key):
        with openai.OpenAI(base_url=url, api_key=key, timeout=300) as one:
            first = one.chat.completions.create(model="any", messages=[QUESTION], tools=[TOOL])
            (call,) = first.choices[0].message.tool_calls
            assert first.choices[0].finish_reason == "tool_calls"
            told = {"role": "tool", "tool_call_id": call.id, "content": "5"}
            messages = [QUESTION, first.choices[0].message.model_dump(), told]
            second = one.chat.completions.create(model="any", messages=messages, tools=[TOOL])
            return first, call, second

    async def test():
        async with opened(tokenizer, CALL, "five") as counter:
            first, call, second = await asyncio.to_thread(play, counter.door.url, counter.key)
            assert (call.function.name, call.function.arguments) == ("add", '{"a":  2}')
            assert first.choices[0].message.content is None
            assert second.choices[0].message.content == "five"
            assert second.choices[0].finish_reason == "stop"
            (one, given), (two, between) = counter.asked
            assert (one.member, two.member, one.keep) == (0, 0, 0)
            assert two.keep == len(given) + len(counter.sampled[0])
            assert tokenizer.decode(between).endswith(
                "5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
            )
            usage = second.usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (two.keep + len(between), 5)
            assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens

    asyncio.run(test())


def test_a_stream_brings_the_same_as_a_whole_answer(tokenizer):
    async def test():
        async with opened(tokenizer, f"so{CALL}", "five") as counter, client(counter) as one:
            text, calls, ends, usages = "", [], [], []
            options = {"stream": True, "stream_options": {"include_usage": True}, "tools": [TOOL]}
            async for chunk in await say(one, **options):
                usages.append(chunk.usage)
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    calls += choice.delta.tool_calls or []
                    ends.append(choice.finish_reason)
            assert (text, [call.function.name for call in calls]) == ("so", ["add"])
            assert ends == [None, "tool_calls"]
            assert [usage and usage.completion_tokens for usage in usages] == [
                None,
                None,
                len(counter.sampled[0]),
            ]

    asyncio.run(test())


class Sum(pydantic.BaseModel):
    total: int


def test_structured_outputs_are_refused_or_left_to_the_client_to_check(tokenizer):
    """As frameworks ask for them; a chosen tool goes the same way."""

    async def ask(one):
        tool = {"type": "function", "function": {"name": "add"}}
        await say(one, tools=[TOOL], tool_choice=tool, parallel_tool_calls=False)
        return await one.chat.completions.parse(model="any", messages=[QUESTION], response_format=Sum)

    async def test():
        async with opened(tokenizer) as counter, client(counter, max_retries=2) as one:
            with pytest.raises(openai.BadRequestError, match="other_sampling: ignore") as refused:
                await ask(one)
            assert (refused.value.code, counter.asked) == ("unsupported_value", [])
        answers = CALL, '{"total": 5}', CALL, "five"
        async with opened(tokenizer, *answers, other_sampling="ignore") as counter, client(counter) as one:
            assert (await ask(one)).choices[0].message.parsed == Sum(total=5)
            with pytest.raises(pydantic.ValidationError):
                await ask(one)
            assert len(counter.asked) == 4

    asyncio.run(test())


def test_logprobs_are_those_that_were_sampled(tokenizer):
    async def test():
        async with opened(tokenizer, "yes") as counter, client(counter) as one:
            answer = await say(one, logprobs=True)
            content = answer.choices[0].logprobs.content
            assert [(each.token, each.logprob) for each in content] == [(c, -0.5) for c in "yes"]

    asyncio.run(test())


class Calls:
    """Counts calls of a function, and waits for them."""

    def __init__(self, owner, name, monkeypatch):
        self.count, self._news, self._called = 0, asyncio.Event(), getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args, **options):
        self.count += 1
        self._news.set()
        return self._called(*args, **options)

    async def reach(self, count):
        async with asyncio.timeout(300):
            while self.count < count:
                self._news.clear()
                await self._news.wait()


def test_a_turn_that_is_longer_than_the_clients_time_out_is_sampled_once(tokenizer, monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 0.05)
    beats = Calls(site, "_wait", monkeypatch)

    async def test():
        async with opened(tokenizer) as counter, client(counter, timeout=0.5) as one:
            more = []
            for number, options in enumerate(({}, {"stream": True})):
                asking = asyncio.create_task(say(one, *more, **options))
                await counter.has_asked(number + 1)
                await beats.reach(beats.count + 15)  # longer than the time-out
                counter.answer("at last")
                answer = await asking
                more = [{"role": "assistant", "content": "at last"}, QUESTION]
                if number:
                    chunks = [chunk async for chunk in answer]
                    assert chunks[0].choices[0].delta.content == "at last"
                else:
                    assert answer.choices[0].message.content == "at last"
            assert len(counter.asked) == 2

    asyncio.run(test())


def test_a_client_that_hears_nothing_and_asks_again_gets_the_turn_that_is_open(tokenizer, monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 60.0)  # no blank keeps it

    async def test():
        async with opened(tokenizer) as counter, client(counter, timeout=0.3, max_retries=99) as one:
            taken = Calls(counter.door.desk, "take", monkeypatch)
            asking = asyncio.create_task(say(one))
            await taken.reach(3)
            counter.answer("once")
            assert (await asking).choices[0].message.content == "once"
            assert len(counter.asked) == 1

    asyncio.run(test())


def test_an_episode_that_ends_cuts_its_clients_and_refuses_them_from_then_on(tokenizer, monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 0.05)
    beats = Calls(site, "_wait", monkeypatch)

    async def test():
        async with opened(tokenizer) as counter, client(counter, max_retries=1) as one:
            asking = asyncio.create_task(say(one))
            await beats.reach(3)  # the answer has begun
            counter.door.desk.close(1)
            with pytest.raises(openai.APIStatusError) as raised:  # cut off, it asked again
                await asking
            assert (raised.value.status_code, raised.value.code) == (410, "episode_over")
            assert len(counter.asked) == 1

    asyncio.run(test())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 2}, "`n` is 2; expected 1"),
        (
            {"temperature": 0.5},
            "`temperature` is 0.5; this run samples with 0.7.*rollout.sampling.temperature",
        ),
        ({"max_tokens": 0}, "`max_tokens` is 0; expected a whole number of at least 1"),
        ({"tool_choice": "required"}, "`tool_choice` is 'required'; expected 'auto' or 'none'"),
    ],
)
def test_what_is_not_supported_is_an_error_in_words_that_is_not_tried_again(tokenizer, options, words):
    async def test():
        sampling = {"temperature": 0.7}
        async with opened(tokenizer, sampling=sampling) as counter, client(counter, max_retries=2) as one:
            with pytest.raises(openai.BadRequestError, match=words) as raised:
                await say(one, **options)
            assert raised.value.param == next(iter(options))
            assert counter.asked == []

    asyncio.run(test())


def test_limits_are_told_as_openai_words_them(tokenizer):
    async def test():
        async with opened(tokenizer, "1", max_turns=1) as counter, client(counter) as one:
            await say(one, temperature=1, seed=3, user="me", max_tokens=10**9)
            with pytest.raises(openai.BadRequestError, match=r"agent\.max_turns") as raised:
                await say(one, {"role": "assistant", "content": "1"}, QUESTION)
            assert raised.value.code == "max_turns_exceeded"
            other = counter.begin(2)
            async with client(counter, other) as two:
                with pytest.raises(openai.BadRequestError) as raised:
                    await say(two, {"role": "user", "content": "x" * 3000})
            assert raised.value.code == "context_length_exceeded"

    asyncio.run(test())


def test_a_wrong_key_is_told_from_one_whose_episode_is_over(tokenizer):
    async def test():
        async with opened(tokenizer) as counter, client(counter, "sk-other") as other, client(counter) as one:
            with pytest.raises(openai.AuthenticationError, match="none of an episode"):
                await other.models.list()
            assert [model.id async for model in one.models.list()] == ["policy"]
            with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
                await one.models.retrieve("gpt")
            counter.door.desk.close(1)
            with pytest.raises(openai.APIStatusError, match="is over") as raised:
                await say(one)
            assert raised.value.status_code == 410

    asyncio.run(test())


@pytest.mark.parametrize(
    ("first", "messages", "options"),
    [
        ("yes", [{"role": "assistant", "content": "no"}, QUESTION], {}),
        ("yes", [], {}),
        ("yes", [{"role": "assistant", "content": "yes"}, QUESTION], {"tools": [TOOL]}),
    ],
)
def test_what_would_need_a_second_conversation_is_refused_by_name_where_one_is_all(
    tokenizer, first, messages, options
):
    async def test():
        async with (
            opened(tokenizer, first, max_trajectories=1) as counter,
            client(counter, max_retries=2) as one,
        ):
            await say(one)
            with pytest.raises(openai.BadRequestError) as raised:
                await say(one, *messages, **options)
            assert raised.value.code == "too_many_conversations"
            assert len(counter.asked) == 1

    asyncio.run(test())


def test_an_edited_history_is_another_conversation_behind_the_same_tokens(tokenizer):
    async def test():
        async with opened(tokenizer, "yes", "no", "so") as counter, client(counter) as one:
            answer = {"role": "assistant", "content": (await say(one)).choices[0].message.content}
            await say(one, answer, QUESTION)
            edited = {"role": "user", "content": "edited"}
            assert (await say(one, answer, edited)).choices[0].message.content == "so"
            (first, given), _, (fork, whole) = counter.asked
            assert (first.member, fork.member, fork.keep) == (0, 1, 0)
            assert whole[: len(given) + len(counter.sampled[0])] == given + counter.sampled[0]

    asyncio.run(test())


def test_sub_agents_ask_at_once_and_each_gets_its_own_answer(tokenizer):
    async def test():
        async with opened(tokenizer) as counter, client(counter) as one:
            both = [asyncio.create_task(say(one, {"role": "system", "content": name})) for name in "ab"]
            await counter.has_asked(2)
            for text in ("yes", "no"):
                counter.answer(text)
            answers = [(await task).choices[0].message.content for task in both]
            assert sorted(answers) == ["no", "yes"]
            assert sorted(ask.member for ask, _ in counter.asked) == [0, 1]

    asyncio.run(test())


def test_calls_that_are_not_trained_have_an_address_of_their_own(tokenizer):
    async def test():
        said = ("yes", "title", "no", "first", "keyed")
        async with opened(tokenizer, *said) as counter, client(counter) as one:
            answer = {"role": "assistant", "content": (await say(one)).choices[0].message.content}
            aside = one.with_options(base_url=str(one.base_url).replace("/v1", "/untrained/v1"))
            assert (await say(aside, answer, QUESTION)).choices[0].message.content == "title"
            assert [model.id async for model in aside.models.list()] == ["policy"]
            await say(one, answer, QUESTION)
            assert [ask.is_trained for ask, _ in counter.asked] == [True, False, True]
            retried = {"extra_headers": {"x-stainless-retry-count": "1"}}
            assert (await say(aside, **retried)).choices[0].message.content == "first", "asked there never"
            assert [ask.member for ask, _ in counter.asked] == [0, 1, 0, 2]
            url = str(one.base_url).replace("/v1", f"/untrained/e/{one.api_key}")
            keyed = one.with_options(base_url=url, api_key="none")
            assert (await say(keyed, QUESTION)).choices[0].message.content == "keyed"
            assert not counter.asked[-1][0].is_trained

    asyncio.run(test())


def said(source):
    """What a policy might say: text, thoughts and calls, well written or not."""
    parts = [
        "",
        "<think>\nhm \n</think>\n\n",
        " so ",
        "caf\u00e9",
        "<tool_call>",
        CALL,
        CALL.replace("2", "{"),
        "\n",
    ]
    return "".join(source.choices(parts, k=source.randrange(1, 5)))


@pytest.mark.parametrize("episodes", [12, pytest.param(500, marks=pytest.mark.thorough)])
def test_whatever_was_said_comes_back_as_the_same_conversation(tokenizer, episodes):
    source = random.Random(episodes)

    def play(url, key):
        with openai.OpenAI(base_url=url, api_key=key, timeout=300) as one:
            messages = [QUESTION]
            for _ in range(2):
                answer = one.chat.completions.create(model="any", messages=messages, tools=[TOOL])
                message = answer.choices[0].message
                messages.append(message.model_dump())
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": "5"}
                    for call in message.tool_calls or []
                ]
                messages += [] if message.tool_calls else [QUESTION]

    async def test():
        answers = [said(source) for _ in range(2 * episodes)]
        async with opened(tokenizer, *answers) as counter:
            for number in range(2, 2 + episodes):
                await asyncio.to_thread(play, counter.door.url, counter.begin(number))
            assert len(counter.asked) == 2 * episodes
            for (one, given), (two, _), sampled in zip(
                counter.asked[::2], counter.asked[1::2], counter.sampled[::2], strict=True
            ):
                assert (one.member, two.member, one.keep) == (0, 0, 0)
                assert two.keep == len(given) + len(sampled)

    asyncio.run(test())
