"""The reward `reasoning_gym`: its own answers, out of rows that were JSON, score as it says."""

import asyncio
import json

import pytest

pytest.importorskip("reasoning_gym", reason="pip install 'staleflow[reasoning-gym]'")

from protocol.rewards.kinds import ReasoningGymReward
from protocol.settings import RewardSettings
from workers.reward.child import ScoringFailed
from workers.reward.kinds.cpu_limit import within
from workers.reward.kinds.interface import Place
from workers.reward.kinds.reasoning_gym import find_answer, make
from workers.reward.mixture import RewardMixture

ITEM = {
    "question": "State the final answer to the following: 3 + 4 =",
    "answer": "7",
    "metadata": {"source_dataset": "chain_sum", "source_index": 0, "expression": "3 + 4"},
}


async def test_an_item_scores_by_its_data_set_wherever_it_stands_in_the_row():
    mixture = RewardMixture([ReasoningGymReward()], RewardSettings(timeout_s=120.0), place=Place(""))
    responses = ["<answer>7</answer>", r"so \boxed{7}", "The answer is 7", "7", "8", "<answer>8</answer> 7"]

    async def score(**row):
        request = (0, json.dumps(row).encode(), "?", [0], responses, [[1]] * 6, ["stop"] * 6)
        return (await mixture.score(request, members=6)).rewards

    async with asyncio.timeout(300), mixture:
        await mixture.start()
        whole, inner = await score(**ITEM), await score(prompt="?", entry=ITEM)
        assert whole == inner
        assert whole[:4] == (1.0,) * 4
        assert max(whole[4:]) < 1.0
        with pytest.raises(ScoringFailed, match="reasoning-gym has no data set 'nope'"):
            await score(answer="7", metadata={"source_dataset": "nope"})
        with pytest.raises(ScoringFailed, match="expected an item of reasoning-gym"):
            await score(answer="7")


def test_an_answer_that_a_scorer_cannot_read_earns_nothing_and_what_is_no_item_is_an_error():
    score = make(ReasoningGymReward(), Place(""))
    item = {
        "question": "?",
        "answer": "2 \u00d7 3",
        "metadata": {"source_dataset": "prime_factorization", "factors": [2, 3]},
    }
    assert score("I think it is prime.", **item) == 0.0
    assert score("<answer>2 \u00d7 3</answer>", **item) == 1.0
    with pytest.raises(ValueError, match="invalid literal"):
        score("<answer>two</answer>", **item | {"answer": "two, three"})


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>6</answer> no, <answer> 7 </answer>.", "7"),
        ("<answer>6<answer>7</answer></answer>", "6<answer>7"),
        ("<answer>7", "<answer>7"),
        ("<answer>" * 200_000, "<answer>" * 200_000),
    ],
)
def test_the_last_tags_hold_the_answer_however_often_they_are_opened(response, answer):
    assert within(30.0, lambda: find_answer(response)) == answer
