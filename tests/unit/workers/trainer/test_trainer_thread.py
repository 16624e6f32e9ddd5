"""Calls in the trainer's thread, own losses and engines among them: what they raise is heard of."""

import asyncio
from types import SimpleNamespace

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


async def test_an_error_in_a_task_of_a_task_is_raised_as_it_is(monkeypatch):
    async def ready(self, *_):
        pass

    async def serve(self):
        async with asyncio.TaskGroup() as tasks:
            await tasks.create_task(self._in_thread(next, iter([])))

    monkeypatch.setattr(TrainerWorker, "_get_ready", ready)
    monkeypatch.setattr(TrainerWorker, "_snapshot", ready)
    monkeypatch.setattr(TrainerWorker, "_serve", serve)
    link = SimpleNamespace(wake=lambda: None)
    with pytest.raises(RunError, match="StopIteration was raised in a thread") as raised:
        await settled(TrainerWorker(SETTINGS, "").run(link))
    assert isinstance(raised.value.__cause__, RuntimeError)


def test_so_it_is_where_an_engine_of_the_users_is_made(tmp_path):
    (tmp_path / "mine.py").write_text("def engine(settings, directory):\n    return next(iter([]))\n")
    rollout = RolloutSettings(engine=f"{tmp_path}/mine.py:engine")
    made = SETTINGS.model_copy(update={"rollout": rollout})
    with pytest.raises(RuntimeError, match="StopIteration was raised in a thread"):
        asyncio.run(settled(asyncio.to_thread(make_engine, made, "")))
