"""Agents that ask their policy at the door, in real processes: functions that are not async, and programs."""

import asyncio
import os
import sys

import pytest

from protocol.agents.settings import AgentSettings
from protocol.messages import Ask, EndEpisodes, EpisodeEnded, EpisodeFailed
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving

CLIENT = """
import json, os, sys, urllib.request

def ask(messages, url=None, key=None):
    url, key = url or os.environ["OPENAI_BASE_URL"], key or os.environ["OPENAI_API_KEY"]
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]
"""
AGENTS = """
from client import *

def episode(policy, row):
    where = {"url": policy.base_url, "key": policy.api_key}
    if row.get("mood") == "isolated":
        where = {}
    talk = [{"role": "user", "content": "a"}]
    if row.get("mood") == "compacts":
        talk.append(ask(talk, **where))
        try:
            ask([*talk, {"role": "user", "content": "b" * 600}], **where)
        except urllib.error.HTTPError as error:
            assert b"context_length_exceeded" in error.read()
        return float(ask([{"role": "user", "content": "summary"}], **where)["content"] == "yes")
    for turn in range(row.get("turns", 2)):
        talk.append(ask(talk, **where))
        policy.reward(turn + 1.0)
        talk.append({"role": "user", "content": "b"})
    return {"score": float(talk[1]["content"] == "yes")}
"""
OF_RESPONSES = """
import openai

def episode(policy, row):
    client = openai.OpenAI(base_url=policy.base_url, api_key=policy.api_key, max_retries=0)
    items = [{"role": "user", "content": "a"}]
    for turn in range(9):
        answer = client.responses.create(model=policy.model, input=items)
        policy.reward(turn + 1.0, turn=answer.id)
        items += [*(item.to_dict() for item in answer.output), {"role": "user", "content": "b"}]
"""
PROGRAM = """
from client import *
import subprocess, time

row = json.load(sys.stdin)
mood = row.get("mood")
if mood == "down":
    print("not now", file=sys.stderr)
    sys.exit(3)
talk = [{"role": "user", "content": "a"}]
for _ in range(row.get("turns", 1)):
    answer = ask(talk)
    talk += [answer, talk[0]]
if mood == "leaves":  # in a session of its own, with no parent
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); "
    code += "print(os.getpid(), flush=True); time.sleep(600)"
    left = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    open(row["file"], "w").write(left.stdout.readline())
if mood == "hangs":
    time.sleep(600)
if mood == "loud":
    sys.stdout.write("x" * 50_000_000)
    print()
if mood == "text":
    print(json.dumps({"reward": "much"}))
else:
    print(json.dumps({"reward": float(answer["content"] == "yes") + int(os.environ["EPISODE_SEED"])}))
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer):
    files = {
        "client.py": CLIENT, "agents.py": AGENTS, "of_responses.py": OF_RESPONSES, "program.py": PROGRAM
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tokenizer.save_pretrained(tmp_path)

    def make(**agent):
        return WorkerSettings(
            run_dir=str(tmp_path), seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
            trainer=TrainerSettings(), agent=AgentSettings(max_turns=3, **agent),
            rollout=RolloutSettings(max_prompt_tokens=400, max_response_tokens=100),
        )  # fmt: skip

    return make


def test_a_function_that_is_not_async_asks_by_the_door_and_its_rewards_are_of_its_turns(settings, tokenizer):
    async def shared(link):
        link.begin(1, mood="isolated")
        failed, _ = await link.hear(EpisodeFailed)
        assert "KeyError: 'OPENAI_BASE_URL'" in failed.reason
        await link.play(2, tokenizer)
        link.answer((await link.hear(Ask))[0], "no", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert ended.turn_rewards == ((0, 0, 1.0), (0, 1, 2.0))
        assert (ended.reward, ended.earned, ended.ending) == ((1.0,), "end", "stop")

    async def isolated(link):
        await link.play(1, tokenizer, mood="isolated", turns=1)
        assert (await link.hear(EpisodeEnded))[0].reward == (1.0,)

    function = f"{settings().run_dir}/agents.py:episode"
    asyncio.run(serving(settings(function=function, door=True), shared))
    asyncio.run(serving(settings(function=function, door=True, isolation="process"), isolated))


def test_the_error_of_a_client_at_a_limit_ends_the_episode_with_what_its_turns_have_earned(
    settings, tokenizer
):
    async def test(link):
        await link.play(1, tokenizer, turns=9)
        for _ in range(2):
            link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.ending, ended.reward, ended.earned) == ("turns", (6.0,), "turns")

    asyncio.run(serving(settings(function=f"{settings().run_dir}/agents.py:episode", door=True), test))


def test_the_openai_package_asks_by_responses_and_its_rewards_are_of_the_turns_of_these_ids(
    settings, tokenizer
):
    pytest.importorskip("openai", reason="the package openai is not installed (pip install -e '.[test]')")

    async def test(link):
        await link.play(1, tokenizer)
        asks = []
        for text in ("yes", "no"):
            asks.append((await link.hear(Ask))[0])
            link.answer(asks[-1], text, tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert [(ask.member, ask.number) for ask in asks] == [(0, 1), (0, 2)]
        assert ended.turn_rewards == ((0, 0, 1.0), (0, 1, 2.0), (0, 2, 3.0))
        assert (ended.ending, ended.reward, ended.earned) == ("turns", (6.0,), "turns")

    function = f"{settings().run_dir}/of_responses.py:episode"
    asyncio.run(serving(settings(function=function, door=True), test))


def test_a_client_that_makes_room_at_a_limit_and_goes_on_was_not_ended_by_it(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, mood="compacts")
        link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.ending, ended.reward) == ("stop", (1.0,))

    asyncio.run(serving(settings(function=f"{settings().run_dir}/agents.py:episode", door=True), test))


def test_programs_play_episodes_and_leave_nothing_behind(settings, tokenizer, tmp_path):
    async def test(link):
        left = tmp_path / "left"
        await link.play(1, tokenizer, mood="leaves", file=str(left))
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.reward, ended.ending) == ((8.0,), "stop")
        assert not os.path.exists(f"/proc/{left.read_text().strip()}")  # noqa: ASYNC240
        await link.play(2, tokenizer, mood="loud")
        assert (await link.hear(EpisodeEnded))[0].reward == (8.0,)
        await link.play(3, tokenizer, mood="text")
        assert "the reward 'much'; expected a number" in (await link.hear(EpisodeFailed))[0].reason
        link.begin(4, mood="down")
        failed, _ = await link.hear(EpisodeFailed)
        assert (failed.kind, failed.group) == ("agent", 4)
        assert "exit code 3; expected 0. The last of its errors:\nnot now" in failed.reason
        await link.play(5, tokenizer, mood="hangs")
        link.tell(EndEpisodes(((5, 0, 1),), "late"))
        await link.play(6, tokenizer, turns=9)  # it ends with an error at its limit
        for _ in range(2):
            link.answer((await link.hear(Ask))[0], "yes", tokenizer)
        ended, _ = await link.hear(EpisodeEnded)
        assert (ended.group, ended.reward, ended.ending) == (6, (0.0,), "turns")

    python = os.path.abspath(sys.executable)
    asyncio.run(serving(settings(command=(python, f"{tmp_path}/program.py")), test))
