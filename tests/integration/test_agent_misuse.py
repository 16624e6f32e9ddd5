"""What users' code does against all sense in an agent worker: each is told, and holds up nobody else."""

import asyncio
import os

import pytest

from protocol.messages import Ask, EpisodeEnded, EpisodeFailed
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving, settings_maker

MAX_TURNS, FORKS, PRINTED_MB = 3, 10_000, 100
AGENTS = f"""
import asyncio, subprocess, sys
from workers.agent.policy import BudgetExceeded

FOUND = []

async def late(policy, talk):
    try:
        await policy.chat(talk)
    except Exception as error:
        FOUND.append(f"{{type(error).__name__}}: {{error}}")

async def episode(policy, row):
    talk = [{{"role": "user", "content": "1"}}]
    await policy.chat(talk)
    match row["mood"]:
        case "leaves tasks":
            asyncio.ensure_future(late(policy, [{{"role": "user", "content": "2"}}]))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(late(policy, talk)))
        case "what it found":
            while len(FOUND) < 2:
                await asyncio.sleep(0.01)
            raise RuntimeError(str(FOUND))
        case "goes on after its limit":
            told = []
            for _ in range(20):
                try:
                    await policy.chat(talk)
                except BudgetExceeded:
                    told.append(1)
            return float(len(told))
        case "side by side":
            asked = [policy.chat([{{"role": "user", "content": name}}]) for name in "AB"]
            said = [answer["content"] for answer in await asyncio.gather(*asked)]
            for turn, _ in enumerate(said, 1):
                policy.reward(float(turn), turn=turn)
            policy.reward(0.25)
            return 1.0
        case "too early":
            asyncio.ensure_future(policy.chat([{{"role": "user", "content": "A"}}]))
            await policy.chat([{{"role": "user", "content": "B"}}])
            policy.reward(1.0, turn=2)
        case "forks":
            asked = [policy.chat([{{"role": "user", "content": str(n)}}]) for n in range({FORKS})]
            found = await asyncio.gather(*asked, return_exceptions=True)
            return float(sum(isinstance(one, ValueError) for one in found))
        case "prints":
            for _ in range({PRINTED_MB}):
                print("x" * (1 << 20))
        case "leaves a process":
            left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            return float(left.pid)
    return 0.5
"""


@pytest.fixture
def settings(tmp_path):
    return settings_maker(tmp_path, AGENTS, make_tokenizer(), max_turns=MAX_TURNS)


def test_none_of_it_holds_up_the_others_and_each_is_told(settings):
    tokenizer = make_tokenizer()

    async def test(link):
        async def played(group, mood, answers=1):
            await link.play(group, tokenizer, mood=mood)
            for _ in range(answers - 1):
                link.answer((await link.hear(Ask))[0], "yes", tokenizer)

        await played(1, "leaves tasks")
        assert (await link.hear(EpisodeEnded))[0].reward == (0.5,)
        assert (await link.hear(Ask))[0].member == 1, (
            "of the one that was left, which nobody answers any more"
        )
        await played(2, "what it found")
        assert (await link.hear(EpisodeFailed))[0].reason.count("EpisodeOver: The episode is over") >= 2
        await played(3, "goes on after its limit", answers=MAX_TURNS)
        ended = (await link.hear(EpisodeEnded))[0]
        assert (ended.ending, ended.reward) == ("turns", (20.0 - (MAX_TURNS - 1),))
        await played(4, "prints")
        assert (await link.hear(EpisodeEnded))[0].reward == (0.5,)
        await played(5, "leaves a process")
        (pid,) = (await link.hear(EpisodeEnded))[0].reward
        left.append(int(pid))
        os.kill(left[0], 0)

    left = []
    asyncio.run(serving(settings(), test))
    with pytest.raises(ProcessLookupError):
        os.kill(left[0], 0)


def test_rewards_of_turns_side_by_side_go_where_their_requests_went(settings):
    tokenizer = make_tokenizer()

    async def test(link):
        await link.play(1, tokenizer, mood="side by side")
        first, second = [(await link.hear(Ask))[0] for _ in range(2)]
        link.answer(second, "B", tokenizer)
        link.answer(first, "A", tokenizer)
        told = {turn[:2]: turn[2] for turn in (await link.hear(EpisodeEnded))[0].turn_rewards}
        assert told == {(first.member, 0): 1.25, (second.member, 0): 2.0}, "A was answered last"
        await link.play(2, tokenizer, mood="too early")
        link.answer((await link.hear(Ask))[0], "B", tokenizer)
        assert "2 turns, and no answer to that one" in (await link.hear(EpisodeFailed))[0].reason

    asyncio.run(serving(settings(), test))


@pytest.mark.thorough
def test_ten_thousand_forks_are_as_many_as_it_may_have_and_refusals(settings):
    tokenizer = make_tokenizer()

    async def test(link):
        await link.play(1, tokenizer, mood="forks")
        for _ in range(63):
            link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        assert (await link.hear(EpisodeEnded))[0].reward == (float(FORKS - 63),)

    asyncio.run(serving(settings(max_turns=4096), test))
