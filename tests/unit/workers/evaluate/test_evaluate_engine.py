"""The engine of a checkpoint: many generations side by side, in one thread."""

import asyncio
import threading

import pytest

from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    SamplingSettings,
    TrainerSettings,
    WorkerSettings,
)
from workers.engines.interface import Sampled
from workers.evaluate import engine as module
from workers.evaluate.engine import LocalAnswer, LocalEngine


class CountingEngine:
    """Samples as many tokens as the last of the prompt says, up to the most; keeps who called it."""

    def __init__(self):
        self.open, self.threads, self.generations, self.most_at_once = {}, set(), [], 0

    def add(self, generation):
        self.threads.add(threading.get_ident())
        if generation.prompt_tokens[-1] == 0:
            raise ValueError("no room")
        if generation.prompt_tokens[-1] < 0:
            next(iter([]))
        self.generations.append(generation)
        self.open[generation.key] = [generation, 0]

    def abort(self, keys):
        self.threads.add(threading.get_ident())
        for key in keys:
            self.open.pop(key, None)

    def step(self):
        self.threads.add(threading.get_ident())
        self.most_at_once = max(self.most_at_once, len(self.open))
        out = []
        for key, found in list(self.open.items()):
            generation, count = found
            found[1] = count = count + 1
            wanted = generation.prompt_tokens[-1]
            is_end = count == min(wanted, generation.max_new_tokens)
            ending = ("length" if wanted > generation.max_new_tokens else "stop") if is_end else ""
            out.append(Sampled(key, 100 + count, -0.5, ending))
            if is_end:
                del self.open[key]
        return out

    def is_busy(self):
        self.threads.add(threading.get_ident())
        return bool(self.open)


@pytest.fixture
def made(monkeypatch):
    engine = CountingEngine()
    monkeypatch.setattr(module, "make_engine", lambda settings, directory: engine)
    return engine


def settings():
    return WorkerSettings(
        run_dir="", seed=0, steps=1, model=ModelSettings(), reward=RewardSettings(),
        rollout=RolloutSettings(), trainer=TrainerSettings(),
        evaluation_sampling=SamplingSettings(temperature=0.0),
    )  # fmt: skip


def run(*prompts, most=3):
    async def generate():
        async with LocalEngine(settings(), "dir") as engine:
            calls = [engine.generate(tokens, most, seed=n) for n, tokens in enumerate(prompts)]
            found = await asyncio.gather(*calls, return_exceptions=True)
            again = await engine.generate([2], most, seed=9)
            return [*found, again]

    return asyncio.run(generate())


def test_generations_run_side_by_side_and_each_gets_its_own(made):
    first, second, again = run([7, 1], [9, 5])
    assert first == LocalAnswer([101], [-0.5], "stop")
    assert second == LocalAnswer([101, 102, 103], [-0.5] * 3, "length")
    assert again.tokens == [101, 102]
    assert [generation.seed for generation in made.generations] == [0, 1, 9]
    assert all(generation.sampling.temperature == 0.0 for generation in made.generations)


def test_all_calls_come_from_one_thread_that_is_not_the_loop_s(made):
    run([2], [3])
    assert len(made.threads) == 1
    assert threading.get_ident() not in made.threads


def test_what_the_engine_cannot_take_is_raised_and_the_others_go_on(made):
    refused, other, _ = run([0], [1])
    assert isinstance(refused, ValueError)
    assert other.tokens == [101]


def test_an_iterator_of_the_engine_that_ends_is_an_error_and_no_silence(made):
    refused, other, _ = run([-1], [1])
    assert isinstance(refused, RuntimeError)
    assert str(refused).startswith("StopIteration was raised in a thread")
    assert other.tokens == [101]


def test_what_is_cancelled_is_no_longer_generated(made):
    async def give_up():
        async with LocalEngine(settings(), "dir") as engine:
            endless = asyncio.ensure_future(engine.generate([10**9], 10**9, seed=0))
            await engine.generate([1], 3, seed=1)
            assert len(made.open) == 1
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            assert (await engine.generate([2], 3, seed=2)).tokens == [101, 102]
            return dict(made.open)

    assert asyncio.run(give_up()) == {}
    assert len(made.threads) == 1
