"""What an episode leaves when it is ended: threads that hang, and what its agent has to close."""

import asyncio

import pytest

from protocol.messages import EndEpisodes, EpisodeEnded, EpisodeFailed
from tests.support.chat_tokenizer import make_tokenizer
from tests.support.scripted_link import serving, settings_maker
from workers.agent import child as child_module

AGENTS = """
import asyncio, time
from pathlib import Path

HERE = Path(__file__).parent

def hang(group):
    (HERE / f"hangs-{group}").touch()
    time.sleep(600)

async def episode(policy, row):
    mood, group = row.get("mood", "play"), row["group"]
    if mood == "hang":
        await asyncio.to_thread(hang, group)
    if mood == "clean":
        try:
            (HERE / f"waits-{group}").touch()
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.2)
            (HERE / f"closed-{group}").touch()
    if mood == "large":
        try:
            await policy.chat([{"role": "user", "content": "x" * (41 << 20)}])
        except ValueError as error:
            policy.log(str(error))
    await asyncio.to_thread(time.sleep, 0)
    await policy.chat([{"role": "user", "content": "hello"}])
    return 1.0
"""


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture
def settings(tmp_path, tokenizer):
    return settings_maker(tmp_path, AGENTS, tokenizer, turn_timeout_s=600.0)


async def is_there(path):
    async with asyncio.timeout(30):
        while not path.exists():  # noqa: ASYNC110  # of another process's file
            await asyncio.sleep(0.01)


async def plays(link, group, tokenizer):
    """An episode as any other, to its end."""
    await link.play(group, tokenizer)
    assert (await link.hear(EpisodeEnded))[0].group == group


def test_a_thread_that_hangs_takes_no_place_from_episodes_that_come_after(settings, tokenizer, tmp_path):
    async def test(link):
        link.begin(1, mood="hang")
        await is_there(tmp_path / "hangs-1")
        link.tell(EndEpisodes(((1, 0, 1),), "late"))
        await plays(link, 2, tokenizer)

    asyncio.run(serving(settings(concurrency=1), test))


def test_where_very_many_hang_the_process_is_replaced(settings, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(child_module, "GRACE_S", 0.3)

    async def test(link):
        for group in (1, 2):
            link.begin(group, mood="hang")
            await is_there(tmp_path / f"hangs-{group}")
            if group == 2:
                link.begin(3)  # it waits for a thread
                link.begin(4)
            link.tell(EndEpisodes(((group, 0, 1),), "late"))
        lost = [(await link.hear(EpisodeFailed))[0] for _ in range(2)]
        assert {(failed.group, failed.kind) for failed in lost} == {(3, "process"), (4, "process")}
        assert "did not obey" in lost[0].reason
        await plays(link, 5, tokenizer)

    asyncio.run(serving(settings(concurrency=1), test))


@pytest.mark.parametrize("isolation", ["shared", "process"])
def test_an_episode_that_is_ended_has_time_to_close_what_it_has_opened(
    settings, tokenizer, tmp_path, isolation
):
    async def test(link):
        link.begin(1, mood="clean")
        await is_there(tmp_path / "waits-1")
        link.tell(EndEpisodes(((1, 0, 1),), "late"))
        await is_there(tmp_path / "closed-1")
        await plays(link, 2, tokenizer)

    asyncio.run(serving(settings(isolation=isolation), test))


def test_a_request_that_is_too_large_is_told_so_and_costs_nobody_his_process(settings, tokenizer):
    async def test(link):
        await link.play(1, tokenizer, mood="large")
        ended, _ = await link.hear(EpisodeEnded)
        assert "bytes as JSON; expected at most 41,877,504. Give the policy less text" in ended.log

    asyncio.run(serving(settings(), test))
