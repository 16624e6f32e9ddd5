"""Texts of any length reach the reward function whole: what is cut out of a prompt is in no message."""

import asyncio
import json
from pathlib import Path

from protocol.rewards.kinds import FunctionReward
from workers.reward.pool import RewardPool

LIMIT_S = 300.0
LONG = "".join(f"{number} " for number in range(40_000))
LENGTHS = "def score(completion, prompt):\n    return float(len(prompt))\n"


async def test_a_prompt_of_token_ids_reaches_the_function_whole(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(LENGTHS)
    row = json.dumps({"prompt_ids": [1]}).encode()
    async with (
        asyncio.timeout(LIMIT_S),
        RewardPool(f"{tmp_path}/lengths.py:score", processes=1, timeout_s=LIMIT_S) as pool,
    ):
        await pool.start()
        for prompt in ("?", LONG):
            rewards = await pool.score((0, row, prompt, [1], ["!"], [[1]], ["stop"]), members=1)
            assert rewards == [len(prompt)]


async def test_the_options_of_a_reward_reach_its_process_whole(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(LENGTHS)
    reward = FunctionReward(function=f"{tmp_path}/lengths.py:score", when={"kind": LONG})
    async with asyncio.timeout(LIMIT_S), RewardPool(reward, processes=1, timeout_s=LIMIT_S) as pool:
        await pool.start()
