"""Calls in the trainer's thread, own losses and engines among them: what they raise is heard of."""

import asyncio

import pytest

from protocol.errors import RunError
from protocol.settings import ModelSettings, RewardSettings, RolloutSettings, TrainerSettings, WorkerSettings
from workers.engines.made_engine import make_engine
from workers.trainer.worker import TrainerWorker

SETTINGS = WorkerSettings(
    run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(), rollout=RolloutSettings(),
    trainer=TrainerSettings(),
)  # fmt: skip


async def settled(call):
    async with asyncio.timeout(300):
        await call


def test_an_iterator_that_ends_in_the_thread_is_an_error_and_no_silence():
    worker = TrainerWorker(SETTINGS, "")
    with pytest.raises(RunError, match="StopIteration was raised in a thread"):
        asyncio.run(settled(worker._in_thread(next, iter([]))))


def test_so_it_is_where_an_engine_of_the_users_is_made(tmp_path):
    (tmp_path / "mine.py").write_text("def engine(settings, directory):\n    return next(iter([]))\n")
    rollout = RolloutSettings(engine=f"{tmp_path}/mine.py:engine")
    made = SETTINGS.model_copy(update={"rollout": rollout})
    with pytest.raises(RuntimeError, match="StopIteration was raised in a thread"):
        asyncio.run(settled(asyncio.to_thread(make_engine, made, "")))
