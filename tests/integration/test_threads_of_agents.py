"""Calls of users' code beside the event loop, in an agent worker: what they raise is heard of, whoever makes
the thread, and what they ask is answered."""

import asyncio

import pytest

from protocol.messages import Ask, EpisodeEnded, EpisodeFailed
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving, settings_maker

AGENTS = """
import asyncio, functools

TALK = [{"role": "user", "content": "a"}]

class Env:
    def reset(self, seed, options):
        return "?", {}

    def step(self, text):
        return next(iter([])), 1.0, True, False, {}

class Tools:
    def reset(self, **row):
        pass

    def none_left(self) -> str:
        '''The next one.'''
        return next(iter([]))

    def get_reward(self):
        return 1.0

def sync(policy, row):
    return next(iter([]))

async def episode(policy, row):
    await policy.chat(TALK)
    match row["mood"]:
        case "stop":
            await asyncio.to_thread(next, iter([]))
        case "cancels itself":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        case "waits":
            await asyncio.sleep(600)
    return 1.0

def threaded(policy, row):
    answer = asyncio.run(policy.chat(TALK))
    policy.reward(0.5)
    if row.get("limit"):
        asyncio.run(policy.chat([*TALK, answer, *TALK]))
    return float(answer["content"] == "yes")
"""
CALL = '<tool_call>{"name": "none_left", "arguments": {}}</tool_call>'
STOPPED = "StopIteration was raised in a thread: `next` found nothing more in an iterator."


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer):
    def make(name, **agent):
        return settings_maker(
            tmp_path, AGENTS, tokenizer, function=f"{tmp_path}/agents.py:{name}", max_turns=3, **agent
        )()

    return make


@pytest.mark.parametrize("name", ["Env", "episode"])
def test_an_iterator_that_ends_in_a_thread_is_a_failure_of_the_agent_in_words(settings, tokenizer, name):
    async def test(link):
        await link.play(1, tokenizer, mood="stop", prompt="go")
        failed, _ = await link.hear(EpisodeFailed)
        assert failed.kind == "agent"
        assert f"raised RuntimeError: {STOPPED}" in failed.reason
        assert "agents.py" in failed.reason or name == "episode", "where it was raised is told"

    asyncio.run(serving(settings(name), test))


def test_a_tool_whose_iterator_ends_answers_with_the_error(settings, tokenizer):
    async def test(link):
        link.begin(1, prompt="go")
        link.answer((await link.hear(Ask))[0], CALL, tokenizer)
        link.answer((await link.hear(Ask))[0], "done", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].reward == (1.0,)

    asyncio.run(serving(settings("Tools"), test))


def test_a_thread_with_an_event_loop_of_its_own_asks_its_policy(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.turn_rewards) == ((1.0,), ((0, 0, 0.5),))
        await link.play(2, tokenizer, limit=True)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.ending) == ((0.5,), "turns")

    made = settings("threaded", door=True)
    agent = made.agent.model_copy(update={"max_turns": 1})
    asyncio.run(serving(made.model_copy(update={"agent": agent}), test))


def test_an_episode_that_cancels_itself_fails_alone(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, mood="waits")
        await link.play(2, tokenizer, mood="cancels itself")
        failed, _ = await link.hear(EpisodeFailed)
        assert (failed.group, failed.kind) == (2, "agent")
        assert "raised asyncio.exceptions.CancelledError" in failed.reason
        link.begin(3, mood="")
        link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].group == 3, "its process is as it was"

    asyncio.run(serving(settings("episode"), test))
