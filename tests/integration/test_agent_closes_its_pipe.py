"""An episode that closes the pipe to its worker, and then stops its process."""

import asyncio
from pathlib import Path

import pytest

from protocol.agents.settings import AgentSettings
from workers.agent.pool import AgentPool

LIMIT_S = 60.0
MODULE = """
import os, signal, stat

def is_pipe(descriptor):
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False

async def agent(policy, row):
    for descriptor in filter(is_pipe, range(3, 64)):
        os.close(descriptor)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


class Listener:
    def __init__(self) -> None:
        self.failed: asyncio.Queue[tuple[int, str, str]] = asyncio.Queue()

    def on_failed(self, *failed: object) -> None:
        self.failed.put_nowait(failed)


async def test_it_is_ended_in_words_long_before_it_counts_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.children.process.END_LIMIT_S", 0.5)
    (tmp_path / "agent_that_closes.py").write_text(MODULE)
    function = f"{tmp_path}/agent_that_closes.py:agent"
    settings = AgentSettings(function=function, processes=1, turn_timeout_s=1e6)
    listener = Listener()
    async with AgentPool(settings, listener, request_kwargs={}) as pool:
        await pool.start()
        (await pool.place(is_alone=False)).begin(1, 5, b"{}")
        number, _, reason = await asyncio.wait_for(listener.failed.get(), LIMIT_S)
    assert (number, "closed the pipe to its worker" in reason) == (1, True)
