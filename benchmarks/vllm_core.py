"""VLLM's engine core in a process of its own beside one in the worker's: tokens per second, and waits.

`.venv-vllm/bin/python -m benchmarks.vllm_core`: both engines are driven as a rollout worker drives them
(workers/rollout/pace.py), in turns, on prompts that nobody has seen before. A wait is how much later than it
should a timer of the event loop rings, on which beats and messages depend; `load_ms` is what an update of the
weights takes while half of the load runs, in which the loop stands still, and `settle_ms` what the pause
before it takes, in which it does not.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines import SHAPES, load_of, make_model, settings
from protocol.settings import WorkerSettings
from workers.engines.interface import Engine, Generation
from workers.rollout.pace import EnginePace
from workers.rollout.worker import make_engine

TICK_S = 0.001


class Turn:
    """One load on one engine."""

    def __init__(self, engine: Engine, load: list[Generation]) -> None:
        self._engine, self._load = engine, load
        self._arrived = asyncio.Event()
        self._pace = EnginePace(engine, step=self._step, wake=self._arrived.set)
        self._count = 0
        self.waits_s: list[float] = []
        self.settle_s = self.load_s = 0.0

    async def run(self, tensors: dict[str, torch.Tensor]) -> float:
        """Tokens per second, without the update in the middle."""
        for generation in self._load:
            self._engine.add(generation)
        ticking = asyncio.create_task(self._tick(), name="tick")
        whole = sum(generation.max_new_tokens for generation in self._load)
        began = time.perf_counter()
        await self._until(whole // 2)
        ticking.cancel()
        await self._update(tensors)
        ticking = asyncio.create_task(self._tick(), name="tick")
        await self._until(whole)
        ticking.cancel()
        return whole / (time.perf_counter() - began - self.settle_s - self.load_s)

    async def _until(self, count: int) -> None:
        while self._count < count:
            if self._pace.is_due():
                await self._pace.turn()
            else:
                self._arrived.clear()
                await self._pace.rest(self._arrived)

    async def _update(self, tensors: dict[str, torch.Tensor]) -> None:
        began = time.perf_counter()
        await self._pace.settle()
        self.settle_s = time.perf_counter() - began
        self._engine.load_weights(self._engine.policy_version + 1, tensors)
        self.load_s = time.perf_counter() - began - self.settle_s
        self._pace.go_on()

    async def _tick(self) -> None:
        while True:
            due = time.perf_counter() + TICK_S
            await asyncio.sleep(TICK_S)
            self.waits_s.append(time.perf_counter() - due)

    def _step(self) -> None:
        self._count += len(self._engine.step())


def of_kind(plain: WorkerSettings, *, has_own_process: bool) -> WorkerSettings:
    """These settings, with the core here or there."""
    vllm = plain.rollout.vllm.model_copy(update={"has_own_process": has_own_process})
    return plain.model_copy(update={"rollout": plain.rollout.model_copy(update={"vllm": vllm})})


def row(name: str, turns: list[Turn], rates: list[float]) -> dict[str, object]:
    """Medians over turns, and the waits of all of them."""
    waits = sorted(wait for turn in turns for wait in turn.waits_s)
    return {
        "core": name,
        "tokens_per_s": round(statistics.median(rates)),
        "wait_ms": {
            "median": round(1e3 * waits[len(waits) // 2], 2),
            "p99": round(1e3 * waits[int(0.99 * len(waits))], 2),
            "largest": round(1e3 * waits[-1], 1),
        },
        "settle_ms": round(1e3 * statistics.median(turn.settle_s for turn in turns), 1),
        "load_ms": round(1e3 * statistics.median(turn.load_s for turn in turns), 1),
    }


async def measure(size: str, counts: list[int], turns: int, folder: str) -> None:
    """Print a line per number of trajectories and kind, and the ratio of their rates."""
    plain = settings("vllm", running=max(counts))
    tensors = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    engines = {
        name: await asyncio.to_thread(make_engine, of_kind(plain, has_own_process=own), folder)
        for name, own in (("own process", True), ("in the worker", False))
    }
    vocabulary = SHAPES[size][-1]
    for count in counts:
        found: dict[str, tuple[list[Turn], list[float]]] = {name: ([], []) for name in engines}
        for number in range(turns):
            order = list(engines) if number % 2 else list(reversed(engines))
            for name in order:
                turn = Turn(engines[name], load_of(count, vocabulary, number + 1))
                found[name][1].append(await turn.run(tensors))
                found[name][0].append(turn)
        for name, (ran, rates) in found.items():
            print(json.dumps({"trajectories": count} | row(name, ran, rates)), flush=True)
        own, here = (statistics.median(rates) for _, rates in found.values())
        print(json.dumps({"trajectories": count, "own_to_worker": round(own / here, 2)}), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SHAPES, default="1M")
    parser.add_argument("--trajectories", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "torch": torch.__version__}
    print(json.dumps(machine | {"model": options.size}), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, options.size)
        asyncio.run(
            measure(options.size, options.trajectories, options.turns, Path(folder).resolve().as_posix())
        )


if __name__ == "__main__":
    main()
