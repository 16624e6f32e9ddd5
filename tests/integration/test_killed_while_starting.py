"""A process of the user's code that something kills while it imports is started again, not for ever."""

import asyncio
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import RunError
from workers.agent.pool import AgentPool
from workers.reward.pool import RewardPool

LIMIT_S = 300.0
MODULE = """
import os, signal
from pathlib import Path

lives = Path(__file__).with_name("lives")
lives.write_text(lives.read_text() + "x" if lives.exists() else "x")
if len(lives.read_text()) <= {kills}:
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out

def reward(completion):
    return 1.0

async def agent(policy, row):
    return 1.0
"""


@pytest.fixture
def killed(tmp_path):
    def write(kills: int) -> Path:
        module = tmp_path / "code_that_is_killed.py"
        module.write_text(MODULE.format(kills=kills))
        return module

    return write


def lives(module: Path) -> int:
    return len(module.with_name("lives").read_text())


def reward_pool(module: Path) -> Any:
    return RewardPool(f"{module}:reward", processes=1, timeout_s=LIMIT_S)


def agent_pool(module: Path) -> Any:
    settings = AgentSettings(function=f"{module}:agent", processes=1)
    return AgentPool(settings, Mock(), request_kwargs={})


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_a_process_that_is_killed_while_it_imports_is_started_again(killed, make):
    module = killed(2)
    async with asyncio.timeout(LIMIT_S), make(module) as pool:
        await pool.start()
        assert lives(module) == 3
        assert len(pool._children) == 1


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_code_that_always_dies_while_it_is_imported_is_told(killed, make):
    module = killed(1000)
    async with asyncio.timeout(LIMIT_S), make(module) as pool:
        with pytest.raises(ExceptionGroup) as caught:
            await pool.start()
    (error,) = caught.value.exceptions
    assert isinstance(error, RunError)
    assert re.search(r"did not start.*killed by signal 9 \(SIGKILL\)", str(error))
    assert lives(module) == 3
