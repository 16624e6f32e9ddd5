"""Texts of agents that take long to encode, before a real worker: they hold nobody else."""

import asyncio
import threading

import numpy as np
import pytest

from protocol.messages import Ask, EndEpisodes, EpisodeEnded
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.held_renderer import LONG, HeldRenderer
from tests.support.scripted_link import serving, settings_maker
from workers.agent.rendering.renderer import TemplateRenderer

AGENTS = """
import asyncio
import openai
from tests.support.held_renderer import LONG
from workers.agent.policy import BudgetExceeded

async def episode(policy, row):
    short, long = ([{"role": "user", "content": text}] for text in ("a", LONG))
    match row.get("mood"):
        case "at once":
            await asyncio.gather(policy.chat(long), policy.chat(short))
        case "limit":
            answer = await policy.chat(short)
            try:
                await policy.chat([*short, answer, *long])
            except BudgetExceeded as error:
                return {"score": 1.0 if error.limit == "context" and "has 1638" in str(error) else 0.0}
        case "door":
            client = openai.AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0)
            ask = lambda talk: client.chat.completions.create(model=policy.model, messages=talk)
            await ask(short)
            try:
                await ask(long)
            except openai.BadRequestError as error:
                return float(error.code == "context_length_exceeded")
        case "door fits":
            client = openai.AsyncOpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0)
            answer = await client.chat.completions.create(model=policy.model, messages=long)
            return float(answer.choices[0].message.content == "yes")
        case "long":
            await policy.chat(long)
        case _:
            await policy.chat(short)
    return 1.0
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer, monkeypatch):
    for name in ("released", "begun"):
        monkeypatch.setattr(HeldRenderer, name, threading.Event())
    monkeypatch.setattr(HeldRenderer, "gave_up", False)
    make = settings_maker(
        tmp_path, AGENTS, tokenizer, renderer="tests.support.held_renderer:HeldRenderer", turn_timeout_s=600.0
    )

    def made(*, fits=True, **agent):
        settings = make(**agent)
        longer = {"max_prompt_tokens": 2 * len(LONG) if fits else 400}
        return settings.model_copy(update={"rollout": settings.rollout.model_copy(update=longer)})

    yield made
    HeldRenderer.released.set()


def given(frame):
    return np.frombuffer(frame, "<i4").tolist()


async def begun():
    await asyncio.to_thread(HeldRenderer.begun.wait, 60)


def test_other_episodes_go_on_while_a_long_text_is_encoded_and_its_tokens_are_the_same(settings, tokenizer):
    async def test(link):
        link.begin(1, mood="long")
        await begun()
        await link.play(2, tokenizer)
        assert (await link.hear(EpisodeEnded))[0].group == 2
        assert not HeldRenderer.gave_up
        HeldRenderer.released.set()
        ask, (frame,) = await link.hear(Ask)
        assert ask.group == 1
        assert given(frame) == TemplateRenderer(tokenizer).render([{"role": "user", "content": LONG}], None)
        link.answer(ask, "yes", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].group == 1

    asyncio.run(serving(settings(), test))


def test_requests_of_one_episode_keep_their_order(settings, tokenizer):
    async def test(link):
        link.begin(1, mood="at once")
        await begun()
        HeldRenderer.released.set()
        for place, length in enumerate((len(LONG), 1)):
            ask, _ = await link.hear(Ask)
            assert (ask.member, ask.given > length) == (place, True)
            link.answer(ask, "yes", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].reward == (1.0,)

    asyncio.run(serving(settings(), test))


@pytest.mark.parametrize("mood", ["limit", "door"])
def test_a_long_text_that_cannot_fit_is_told_as_every_limit_is(settings, tokenizer, mood):
    async def test(link):
        HeldRenderer.released.set()
        await link.play(1, tokenizer, mood=mood)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.ending, ended.reward) == ("context", (1.0,))

    asyncio.run(serving(settings(fits=False, door=mood == "door"), test))


def test_a_client_of_the_door_gets_its_answer_to_a_long_text(settings, tokenizer):
    async def test(link):
        link.begin(1, mood="door fits")
        await begun()
        HeldRenderer.released.set()
        ask, _ = await link.hear(Ask)
        link.answer(ask, "yes", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].reward == (1.0,)

    asyncio.run(serving(settings(door=True), test))


def test_a_worker_that_is_to_leave_does_not_wait_for_a_long_text(settings, tokenizer):
    async def test(link):
        link.begin(1, mood="long")
        await begun()

    asyncio.run(serving(settings(), test))
    assert not HeldRenderer.gave_up


def test_an_episode_may_end_while_its_text_is_encoded(settings, tokenizer):
    async def test(link):
        link.begin(1, mood="long")
        await begun()
        link.tell(EndEpisodes(((1, 0, 1),), "late"))
        await link.play(2, tokenizer)
        assert (await link.hear(EpisodeEnded))[0].group == 2
        HeldRenderer.released.set()
        link.begin(3, mood="long")  # the thread is free again
        ask, _ = await link.hear(Ask)
        assert ask.group == 3

    asyncio.run(serving(settings(), test))
