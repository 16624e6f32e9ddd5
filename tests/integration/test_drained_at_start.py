"""A worker that is drained waits for no process that imports the user's code."""

import asyncio
import os

import pytest

from protocol.agents.settings import AgentSettings
from protocol.messages import Ready
from protocol.settings import RewardSettings
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import LIMIT_S, ScriptedLink, settings_maker
from workers.agent.worker import AgentHost
from workers.children import pool
from workers.reward.worker import RewardWorker

CODE = """
import os, threading

if os.path.exists("{folder}/may import no more"):
    open("{folder}/begun", "w").close()
    threading.Event().wait()

async def episode(policy, row):
    return 1.0

def reward(completion, **row):
    return 1.0
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "START_LIMIT_S", 10 * LIMIT_S)
    os.mkfifo(tmp_path / "begun")
    return settings_maker(tmp_path, CODE.format(folder=tmp_path), make_tokenizer(), processes=1)


async def drained(worker, folder, *, is_ready=False):
    """What a worker has said that is drained while a process imports."""
    link = ScriptedLink()
    running = asyncio.create_task(worker.run(link))
    async with asyncio.timeout(LIMIT_S):
        if is_ready:
            await link.hear(Ready)
        (folder / "may import no more").touch()
        if is_ready:
            link.begin(5)
        begun = await asyncio.to_thread((folder / "begun").open)
        begun.close()
        worker.drain()
        await running
    return [message for message, _ in link._said]


def test_while_its_processes_start(settings, tmp_path):
    (tmp_path / "may import no more").touch()
    assert asyncio.run(drained(AgentHost(settings(), str(tmp_path)), tmp_path)) == []


def test_while_the_processes_of_a_reward_start(settings, tmp_path):
    (tmp_path / "may import no more").touch()
    reward = RewardSettings(function=f"{tmp_path}/agents.py:reward", processes=1)
    rewarded = settings().model_copy(update={"agent": AgentSettings(), "reward": reward})
    assert asyncio.run(drained(RewardWorker(rewarded, str(tmp_path)), tmp_path)) == []


def test_while_the_process_of_an_episode_starts(settings, tmp_path):
    worker = AgentHost(settings(isolation="process"), str(tmp_path))
    assert asyncio.run(drained(worker, tmp_path, is_ready=True)) == []


def test_before_they_are_started(settings, tmp_path):
    async def drain_first():
        worker = AgentHost(settings(), str(tmp_path))
        worker.drain()
        async with asyncio.timeout(LIMIT_S):
            await worker.run(ScriptedLink())

    (tmp_path / "may import no more").touch()
    asyncio.run(drain_first())
