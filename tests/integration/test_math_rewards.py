"""The reward `math` in its processes: the same as direct calls, and no response that holds it up."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from math_pairs import hostile, pairs

pytest.importorskip("math_verify", reason="pip install 'staleflow[math]'")

from protocol.rewards.kinds import FunctionReward, MathReward
from protocol.settings import RewardSettings
from workers.reward.kinds.interface import Place
from workers.reward.kinds.math import make
from workers.reward.mixture import RewardMixture, Scored

LIMIT_S = 3600  # a thousand strings of a second of processor time each take ten minutes on a busy machine


@asynccontextmanager
async def rewards(*entries, **settings) -> AsyncIterator[RewardMixture]:
    made = RewardMixture(entries, RewardSettings(**settings), place=Place(""))
    async with asyncio.timeout(LIMIT_S), made:
        await made.start()
        yield made


async def score(mixture: RewardMixture, gold: str, completions: list[str]) -> Scored:
    row = json.dumps({"prompt": "?", "answer": gold}).encode()
    count = len(completions)
    return await mixture.score(
        (0, row, "?", [0], completions, [[1]] * count, ["stop"] * count), members=count
    )


async def is_equal_to_direct_calls(count: int) -> None:
    asked = pairs(count)
    direct = make(MathReward(cpu_s=60.0), Place(""))
    wanted = [direct(completion, answer=gold) for gold, completion in asked]
    assert 0.2 < sum(wanted) / count < 0.8
    async with rewards(MathReward(cpu_s=60.0), processes=2, timeout_s=300.0) as mixture:
        found = await asyncio.gather(*(score(mixture, gold, [completion]) for gold, completion in asked))
    assert [one.rewards for one in found] == [(value,) for value in wanted]


async def test_verdicts_side_by_side_equal_direct_calls():
    await is_equal_to_direct_calls(200)


@pytest.mark.thorough
async def test_many_verdicts_side_by_side_equal_direct_calls():
    await is_equal_to_direct_calls(2000)


async def hold_up_nothing(count: int, *, cpu_s: float, size: int) -> None:
    """None is right, none fails its group, and after all of them the process still scores."""
    strings = hostile(count)
    async with rewards(MathReward(cpu_s=cpu_s), processes=2, timeout_s=120.0) as mixture:
        groups = [strings[begin : begin + size] for begin in range(0, count, size)]
        for group in await asyncio.gather(*(score(mixture, "123456789", one) for one in groups)):
            assert set(group.rewards) == {0.0}
        assert (await score(mixture, "1", ["1", "2"])).rewards == (1.0, 0.0)


async def test_hostile_responses_get_nothing_and_hold_up_nothing():
    await hold_up_nothing(14, cpu_s=0.3, size=7)


@pytest.mark.thorough
async def test_a_thousand_hostile_responses_hold_up_nothing():
    await hold_up_nothing(1000, cpu_s=1.0, size=8)


HANGING = """
from protocol.rewards.kinds import MathReward
from workers.reward.kinds import math
from workers.reward.kinds.interface import Place

math.is_equal = lambda gold, answer: 3 ** (3 ** 19) > 0 if "hang" in answer else gold in answer
score = math.make(MathReward(cpu_s=0.1), Place(""))
"""


async def test_what_never_comes_back_to_python_costs_its_response_and_no_other(tmp_path):
    (tmp_path / "hanging.py").write_text(HANGING.replace("3 ** 19", "3 ** 21"))
    entry = FunctionReward(function=f"{tmp_path}/hanging.py:score")
    async with rewards(entry, timeout_s=120.0) as mixture:
        pool = mixture._entries[0].pool
        pool._out_of_cpu = 0.0  # as the table says of `math`
        scored = await score(mixture, "5", ["5", "hang", "5"])
        assert scored.rewards == (1.0, 0.0, 1.0)


async def test_a_gold_answer_that_is_not_there_fails_the_group_in_words():
    from workers.reward.child import ScoringFailed

    async with rewards(MathReward(answer="gold")) as mixture:
        with pytest.raises(ScoringFailed, match="nothing in the column `gold`"):
            await score(mixture, "1", ["1"])
