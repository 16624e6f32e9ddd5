"""The unchanged `openai` package as a client of the door by the Responses API."""

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
SAID = f"<think>\nhm\n</think>\n\nso {CALL}\n{CALL}"
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "parameters": TOOL["parameters"]}}


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def client(counter, key=None, **options):
    options = {"timeout": 300, "max_retries": 0} | options
    return openai.AsyncOpenAI(base_url=counter.door.url, api_key=key or counter.key, **options)


async def say(one, *items, **options):
    return await one.responses.create(model="any", input=[QUESTION, *items], **options)


def answered(response):
    """The items of a response as they are sent back, and what follows them."""
    calls = [item for item in response.output if item.type == "function_call"]
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "5"} for call in calls]
    return [*(item.to_dict() for item in response.output), *(outputs or [QUESTION])]


async def chat(one):
    """The same two turns by chat completions."""
    messages = [{"role": "system", "content": "Add."}, QUESTION]
    first = await one.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL])
    message = first.choices[0].message
    told = [{"role": "tool", "tool_call_id": call.id, "content": "5"} for call in message.tool_calls]
    messages += [message.model_dump(), *told]
    return await one.chat.completions.create(model="any", messages=messages, tools=[CHAT_TOOL])


async def whole(one, items, **options):
    return await one.responses.create(model="any", input=items, **options)


async def streamed(one, items, **options):
    async with one.responses.stream(model="any", input=items, **options) as stream:
        return await stream.get_final_response()


@pytest.mark.parametrize("ask", [whole, streamed])
def test_two_turns_with_tool_calls_are_the_tokens_of_the_same_chat(tokenizer, ask):
    async def test():
        async with opened(tokenizer, SAID, "five", SAID, "five") as counter, client(counter) as one:
            await chat(one)
            async with client(counter, counter.begin(2)) as two:
                options = {"instructions": "Add.", "tools": [TOOL]}
                first = await ask(two, [QUESTION], **options)
                kinds = [item.type for item in first.output]
                assert kinds == ["reasoning", "message", "function_call", "function_call"]
                assert (first.output_text, first.output[2].arguments) == ("so", '{"a":  2}')
                second = await ask(two, [QUESTION, *answered(first)], **options)
            assert (second.output_text, second.status, second.model) == ("five", "completed", "policy")
            by_chat, by_responses = counter.asked[:2], counter.asked[2:]
            assert [given for _, given in by_responses] == [given for _, given in by_chat]
            assert [(ask.member, ask.keep) for ask, _ in by_responses] == [
                (ask.member, ask.keep) for ask, _ in by_chat
            ]
            assert second.usage.input_tokens == counter.asked[-1][0].keep + len(counter.asked[-1][1])
            assert second.usage.output_tokens == len(counter.sampled[-1])

    asyncio.run(test())


def test_the_events_of_a_stream_say_the_whole_answer(tokenizer):
    async def test():
        async with opened(tokenizer, SAID, SAID) as counter, client(counter) as one:
            events = [event async for event in await say(one, tools=[TOOL], stream=True)]
            deltas = ["".join(event.delta for event in events if event.type == f"response.{kind}.delta")
                      for kind in ("reasoning_text", "output_text", "function_call_arguments")]  # fmt: skip
            assert deltas == ["hm", "so", '{"a":  2}' * 2]
            assert [event.sequence_number for event in events] == [*range(len(events))]
            assert events[-1].response.output == [
                event.item for event in events if event.type == "response.output_item.done"
            ]

    asyncio.run(test())


class Sum(pydantic.BaseModel):
    total: int


def test_structured_outputs_are_refused_or_left_to_the_client_to_check(tokenizer):
    async def ask(one):
        return await one.responses.parse(model="any", input="2+3?", text_format=Sum)

    async def test():
        async with opened(tokenizer) as counter, client(counter) as one:
            with pytest.raises(openai.BadRequestError, match=r"`text\.format` is .*other_sampling: ign"):
                await ask(one)
        answers = '{"total": 5}', "five"
        async with opened(tokenizer, *answers, other_sampling="ignore") as counter, client(counter) as one:
            assert (await ask(one)).output_parsed == Sum(total=5)
            with pytest.raises(pydantic.ValidationError):
                await ask(one)

    asyncio.run(test())


def test_logprobs_are_those_that_were_sampled(tokenizer):
    async def test():
        async with opened(tokenizer, "yes") as counter, client(counter) as one:
            answer = await say(one, include=["message.output_text.logprobs"])
            logprobs = answer.output[0].content[0].logprobs
            assert [(each.token, each.logprob) for each in logprobs] == [(c, -0.5) for c in "yes"]

    asyncio.run(test())


def test_an_answer_that_was_cut_is_incomplete(tokenizer):
    async def test():
        async with opened(tokenizer) as counter, client(counter) as one:
            asking = asyncio.create_task(say(one, max_output_tokens=2))
            await counter.has_asked(1)
            assert counter.asked[0][0].max_new_tokens == 2
            counter.answer("so", ending="length")
            answer = await asking
            assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
            assert (answer.output_text, answer.output[0].status) == ("so", "incomplete")

    asyncio.run(test())


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_whose_time_is_out_asks_again_and_the_turn_is_sampled_once(
    tokenizer, monkeypatch, is_stream
):
    monkeypatch.setattr(site, "SILENCE_S", 60.0)  # no blank keeps it

    async def test():
        async with opened(tokenizer) as counter, client(counter, timeout=0.3, max_retries=99) as one:
            taken, take, again = 0, counter.door.desk.take, asyncio.Event()

            def counted(*args, **options):
                nonlocal taken
                taken += 1
                if taken == 3:
                    again.set()
                return take(*args, **options)

            monkeypatch.setattr(counter.door.desk, "take", counted)
            asking = asyncio.create_task(say(one, stream=is_stream))
            async with asyncio.timeout(300):
                await again.wait()
            counter.answer("once")
            answer = await asking
            if is_stream:
                answer = [event async for event in answer][-1].response
            assert (answer.output_text, len(counter.asked)) == ("once", 1)

    asyncio.run(test())


def test_a_turn_that_is_longer_than_the_clients_time_out_is_waited_for(tokenizer, monkeypatch):
    monkeypatch.setattr(site, "SILENCE_S", 0.05)
    beats = asyncio.Semaphore(0)
    wait = site._wait

    async def counted(question):
        beats.release()
        return await wait(question)

    monkeypatch.setattr(site, "_wait", counted)

    async def test():
        async with opened(tokenizer) as counter, client(counter, timeout=0.5) as one:
            for ask in (whole, streamed):
                asking = asyncio.create_task(ask(one, [QUESTION]))
                async with asyncio.timeout(300):
                    for _ in range(15):  # longer than the time-out
                        await beats.acquire()
                counter.answer("at last")
                assert (await asking).output_text == "at last"

    asyncio.run(test())


def test_limits_keys_and_what_is_not_trained_are_as_by_chat_completions(tokenizer):
    async def test():
        async with (
            opened(tokenizer, "1", "2", max_turns=2) as counter,
            client(counter) as one,
            client(counter, "sk-other") as other,
        ):
            aside = one.with_options(base_url=str(one.base_url).replace("/v1", "/untrained/v1"))
            first = await say(aside)
            await say(one)
            assert [(ask.member, ask.is_trained) for ask, _ in counter.asked] == [(0, False), (1, True)]
            with pytest.raises(openai.BadRequestError, match=r"agent\.max_turns") as raised:
                await say(one, *answered(first))
            assert (raised.value.code, raised.value.param) == ("max_turns_exceeded", "input")
            with pytest.raises(openai.AuthenticationError, match="none of an episode"):
                await say(other)
            with pytest.raises(openai.NotFoundError, match="expected /v1/chat/completions, /v1/responses or"):
                await one.responses.retrieve(first.id)
            counter.door.desk.close(1)
            with pytest.raises(openai.APIStatusError, match="is over"):
                await say(one)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"previous_response_id": "resp_1"}, "send the whole conversation as `input`"),
        ({"conversation": "conv_1"}, "send the whole conversation as `input`"),
        ({"tools": [{"type": "web_search"}]}, r"`tools\[0\]` is of the type 'web_search'"),
        ({"temperature": 0.5}, "`temperature` is 0.5; this run samples with"),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "Send the item itself"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "5"}]}, "call 'x', which no"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_an_error_in_words_that_is_not_tried_again(tokenizer, options, words):
    async def test():
        async with opened(tokenizer) as counter, client(counter, max_retries=2) as one:
            with pytest.raises(openai.BadRequestError, match=words) as raised:
                await one.responses.create(**{"model": "any", "input": "2+3?"} | options)
            assert raised.value.param.startswith(next(iter(options)))
            assert counter.asked == []

    asyncio.run(test())


def said(source):
    """What a policy might say: text, thoughts and calls, well written or not."""
    call = CALL.replace("2", "{")
    parts = ["", "<think>\nhm \n</think>\n\n", " so ", "caf\u00e9", "<tool_call>", CALL, call, "\n"]
    return "".join(source.choices(parts, k=source.randrange(1, 5)))


@pytest.mark.parametrize("episodes", [12, pytest.param(500, marks=pytest.mark.thorough)])
def test_whatever_was_said_comes_back_as_the_same_conversation(tokenizer, episodes):
    source = random.Random(episodes)

    async def play(counter, number):
        async with client(counter, counter.begin(number)) as one:
            ask = streamed if number % 2 else whole
            items = [QUESTION]
            for _ in range(2):
                items += answered(await ask(one, items, tools=[TOOL]))

    async def test():
        answers = [said(source) for _ in range(2 * episodes)]
        async with opened(tokenizer, *answers) as counter:
            for number in range(2, 2 + episodes):
                await play(counter, number)
            assert len(counter.asked) == 2 * episodes
            for (one, given), (two, _), sampled in zip(
                counter.asked[::2], counter.asked[1::2], counter.sampled[::2], strict=True
            ):
                assert (one.member, two.member, one.keep) == (0, 0, 0)
                assert two.keep == len(given) + len(sampled)

    asyncio.run(test())
