"""What many ask at once is made once, and nobody gets an old answer for it."""

import asyncio

import pytest

from controller.view.door.shared import LIVES, MOST_LIFE_S, Made, SharedAnswers

LIMIT_S = 60


class Asked:
    """A site whose answers take as long as the test says."""

    def __init__(self, status=200):
        self.now, self.status, self.made = 0.0, status, 0
        self.begun, self.gate = asyncio.Event(), asyncio.Event()
        self.shared = SharedAnswers(lambda: self.now)

    async def make(self):
        self.made += 1
        number = self.made
        self.begun.set()
        await self.gate.wait()
        return Made(self.status, str(number).encode())

    async def ask(self, what="now"):
        return (await self.shared.get(what, self.make)).body

    async def first(self, took):
        """The first answer, which took so many seconds."""
        asking = asyncio.create_task(self.ask())
        await self.begun.wait()
        self.now += took
        self.gate.set()
        return await asking


async def test_who_asks_while_it_is_made_gets_the_same_and_another_question_its_own():
    site = Asked()
    async with asyncio.timeout(LIMIT_S):
        asking = [asyncio.create_task(site.ask(what)) for what in ("now", "now", "ledger", "now")]
        await asyncio.sleep(0)
        site.gate.set()
        assert await asyncio.gather(*asking) == [b"1", b"1", b"2", b"1"]


async def test_an_answer_is_young_for_a_few_times_what_it_took():
    site = Asked()
    async with asyncio.timeout(LIMIT_S):
        assert await site.first(0.05) == b"1"
        site.now += 0.05 * LIVES - 0.001
        assert await site.ask() == b"1"
        site.now += 0.002
        assert await site.ask() == b"2"


async def test_a_slow_answer_is_no_older_than_a_page_may_be():
    site = Asked()
    async with asyncio.timeout(LIMIT_S):
        assert await site.first(2.0) == b"1"
        site.now += MOST_LIFE_S
        assert await site.ask() == b"2"


@pytest.mark.parametrize("status", [202, 404])
async def test_what_is_not_ready_or_not_there_is_asked_for_again(status):
    site = Asked(status)
    async with asyncio.timeout(LIMIT_S):
        assert await site.first(1.0) == b"1"
        assert await site.ask() == b"2"


async def test_one_who_goes_away_takes_the_answer_from_nobody_else():
    site = Asked()
    async with asyncio.timeout(LIMIT_S):
        first, second = asyncio.create_task(site.ask()), asyncio.create_task(site.ask())
        await asyncio.sleep(0)
        first.cancel()
        site.gate.set()
        assert await second == b"1"
        assert first.cancelled()


async def test_a_failure_is_told_and_not_kept():
    site = Asked()

    async def fail():
        raise OSError("gone")

    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(OSError, match="gone"):
            await site.shared.get("now", fail)
        site.gate.set()
        assert await site.ask() == b"1"
