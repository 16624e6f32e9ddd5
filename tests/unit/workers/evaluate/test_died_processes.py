"""Episodes at an endpoint whose process has died: the one that killed it is found."""

import asyncio
from types import SimpleNamespace

import pytest

from protocol.agents.settings import AgentSettings
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings

pytest.importorskip("httpx2", reason="the package httpx2 is not installed (pip install -e '.[judge]')")

from workers.agent.child import Ended
from workers.evaluate.endpoint import EndpointEpisodes

SETTINGS = WorkerSettings(
    run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(), trainer=TrainerSettings(),
    rollout=RolloutSettings(), agent=AgentSettings(function="a.py:f", retries=3),
)  # fmt: skip


class Failing:
    """A pool of one process, which reports these failures, and then an episode that ends."""

    asks_at_door = True

    def __init__(self, *kinds):
        self.kinds, self.placed = [*kinds], []

    async def place(self, *, is_alone):
        self.placed.append(is_alone)
        return self

    def begin(self, number, seed, row, door):
        if self.kinds:
            self.episodes.on_failed(number, self.kinds.pop(0), "so it failed")
        else:
            self.episodes.on_ended(number, Ended(1.0, (), (), ""))

    def count(self, number, place):
        """Its turn is counted."""

    def cancel(self, number):
        """It is over already."""

    def answered(self, child):
        """It works."""


def test_an_episode_that_was_in_a_process_when_it_died_is_tried_again_alone():
    pool = Failing("agent", "process", "environment")

    async def play():
        endpoint = SimpleNamespace(base_url="http://there/v1", key="")
        pool.episodes = EndpointEpisodes(SETTINGS, endpoint)
        pool.episodes._pool = pool
        return await pool.episodes.play(0, 0, {})

    assert asyncio.run(play()).reward == 1.0
    assert pool.placed == [False, False, True, True]
