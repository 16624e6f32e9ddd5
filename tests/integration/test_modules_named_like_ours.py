"""A module of the user's may have the name of a folder inside our packages."""

import os
from pathlib import Path

from protocol.importing import python_path
from workers.reward.pool import RewardPool

ROOT = Path(__file__).resolve().parents[2]


def test_processes_look_for_our_packages_beside_them_not_in_them():
    assert Path(python_path().split(os.pathsep)[0]) == ROOT


async def test_a_reward_of_modules_named_engines_and_reward(tmp_path):
    (tmp_path / "engines.py").write_text("WORTH = 3.0\n")
    (tmp_path / "reward.py").write_text(
        "from engines import WORTH\n\ndef score(completion):\n    return WORTH\n"
    )
    pool = RewardPool("reward:score", processes=1, timeout_s=60.0, import_paths=[str(tmp_path)])
    async with pool:
        await pool.start()
        assert await pool.score((0, b"{}", "?", [0], ["a"], [[1]], ["stop"]), members=1) == [3.0]
