"""A process of the user's code that something kills while it imports is started again, not for ever."""

import asyncio
import gc
import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from protocol.agents.settings import AgentSettings
from protocol.errors import ConfigError, RunError
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


@pytest.fixture
async def wrong():
    """What the event loop was told of as wrong, with nobody to hear it."""
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(str(context)))
    return told


def lives(module: Path) -> int:
    return len(module.with_name("lives").read_text())


def reward_pool(module: Path, processes: int = 1) -> Any:
    return RewardPool(f"{module}:reward", processes=processes, timeout_s=LIMIT_S)


def agent_pool(module: Path, processes: int = 1) -> Any:
    settings = AgentSettings(function=f"{module}:agent", processes=processes)
    return AgentPool(settings, Mock(), request_kwargs={})


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_a_process_that_is_killed_while_it_imports_is_started_again(killed, make):
    module = killed(2)
    async with asyncio.timeout(LIMIT_S), make(module) as pool:
        await pool.start()
        assert lives(module) == 3
        assert len(pool._children) == 1


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_code_that_takes_too_long_to_import_is_told_in_one_sentence(tmp_path, monkeypatch, make, wrong):
    module = tmp_path / "code_that_is_slow.py"
    module.write_text("import signal\nsignal.pause()\n")
    monkeypatch.setattr("workers.children.pool.START_LIMIT_S", 0.5)
    async with asyncio.timeout(LIMIT_S), make(module) as pool:
        with pytest.raises(ExceptionGroup) as caught:
            await pool.start()
    (error,) = caught.value.exceptions
    assert isinstance(error, RunError)
    assert re.search(r"did not start\. .* did not import its module within 0\.5 s.*Look at what", str(error))
    gc.collect()
    assert wrong == []


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_a_file_that_hides_a_module_of_python_is_named_where_a_process_does_not_start(
    tmp_path, monkeypatch, make, wrong
):
    (tmp_path / "random.py").write_text("print('my notes')\n")
    (tmp_path / "code_that_is_sound.py").write_text(
        "import random\nasync def score(completion): return 1.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with asyncio.timeout(LIMIT_S), make(tmp_path / "code_that_is_sound.py") as pool:
        with pytest.raises(ExceptionGroup) as caught:
            await pool.start()
    (error,) = caught.value.exceptions
    assert f"{tmp_path}/random.py hides Python's own module `random`" in str(error)


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_a_pool_that_is_closed_while_it_starts_is_no_error(tmp_path, make, wrong):
    module, tells = tmp_path / "code_that_waits.py", tmp_path / "tells"
    os.mkfifo(tells)
    module.write_text(f"import signal\nopen({str(tells)!r}, 'w').close()\nsignal.pause()\n")
    async with asyncio.timeout(LIMIT_S):
        async with make(module) as pool:
            starting = asyncio.create_task(pool.start())
            await asyncio.to_thread(tells.read_text)
        await starting
    assert pool._children == []
    gc.collect()
    assert wrong == []


@pytest.mark.parametrize("make", [reward_pool, agent_pool])
async def test_of_two_processes_whose_code_is_no_good_one_is_told(tmp_path, make, wrong):
    module = tmp_path / "code_that_is_no_good.py"
    module.write_text("raise ValueError('no good')\n")
    async with asyncio.timeout(LIMIT_S), make(module, processes=2) as pool:
        with pytest.raises(ExceptionGroup) as caught:
            await pool.start()
    assert isinstance(caught.value.exceptions[0], ConfigError)
    gc.collect()
    assert wrong == []


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
