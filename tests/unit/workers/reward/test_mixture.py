"""The weighted sum of several rewards: which count for a row, and what one failure does to the rest."""

import asyncio
import json
from typing import Any

import pytest

from protocol.rewards.kinds import ExactReward, FunctionReward
from protocol.settings import RewardSettings
from workers.reward import mixture
from workers.reward.child import ScoringFailed
from workers.reward.kinds.interface import Place
from workers.reward.mixture import RewardMixture


class Pool:
    """In the place of a pool: gives each response its number, or fails."""

    made: list["Pool"] = []  # noqa: RUF012

    def __init__(self, reward: Any, **settings: Any) -> None:
        self.reward, self.settings = reward, settings
        self.answer: Any = None
        self.was_cancelled = False
        self.made.append(self)

    async def score(self, request: tuple[Any, ...], *, members: int) -> list[float]:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
        return self.answer


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(mixture, "RewardPool", Pool)
    monkeypatch.setattr(Pool, "made", [])

    def make(*rewards: Any) -> tuple[RewardMixture, list[Pool]]:
        return RewardMixture(rewards, RewardSettings(timeout_s=9.0), place=Place("")), Pool.made

    return make


def request(**row: Any) -> tuple[Any, ...]:
    return (0, json.dumps({"prompt": "?", **row}).encode(), "?", [1], ["a", "b"], [[1], [2]], ["stop"] * 2)


async def test_the_reward_is_the_weighted_sum_of_those_whose_when_fits_the_row(made):
    mix, pools = made(
        ExactReward(weight=2.0, when={"source": ["a", "b"]}),
        FunctionReward(function="m.py:other", when={"source": "c"}, timeout_s=1.0),
        FunctionReward(function="m.py:brevity", weight=-0.5),
    )
    assert [pool.settings["timeout_s"] for pool in pools] == [9.0, 1.0, 9.0]
    for pool, answer in zip(pools, ([1.0, 0.0], [8.0, 8.0], [1.0, 4.0]), strict=True):
        pool.answer = answer
    scored = await mix.score(request(source="b"), members=2)
    assert scored.rewards == (1.5, -2.0)
    assert scored.parts == (("exact", (1.0, 0.0)), ("brevity", (1.0, 4.0)))
    assert (await mix.score(request(source="c"), members=2)).rewards == (7.5, 6.0)


async def test_one_that_fails_fails_the_group_and_the_others_are_given_up(made):
    mix, pools = made(ExactReward(), FunctionReward(function="m.py:f"))
    pools[1].answer = ScoringFailed("it broke")
    with pytest.raises(ScoringFailed, match="it broke"):
        await mix.score(request(), members=2)
    assert pools[0].was_cancelled


async def test_a_row_that_no_reward_is_for_fails_in_words(made):
    mix, _ = made(ExactReward(when={"source": "a"}))
    with pytest.raises(ScoringFailed, match="None of the rewards `exact` is for this row"):
        await mix.score(request(source="b"), members=2)


async def test_a_sum_out_of_range_is_no_reward(made):
    mix, pools = made(ExactReward(weight=1e300), FunctionReward(function="m.py:f"))
    pools[0].answer = pools[1].answer = [1e30, 1.0]
    with pytest.raises(ScoringFailed, match="weighted sum"):
        await mix.score(request(), members=2)


async def test_one_function_alone_has_no_metric_of_its_own_and_a_kind_has(made):
    alone, pools = made(FunctionReward(function="m.py:f"))
    pools[0].answer = [1.0, 2.0]
    assert await alone.score(request(), members=2) == ((1.0, 2.0), ())
    named, pools = made(ExactReward())
    pools[1].answer = [1.0, 2.0]
    assert (await named.score(request(), members=2)).parts == (("exact", (1.0, 2.0)),)
