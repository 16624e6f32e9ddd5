"""What publishing costs training: `python -m benchmarks.publish_overlap [--turns 5]`.

A trainer worker takes batch after batch over a link of this process: without publishing anything, publishing
every version, and with publishing made to last as long as a step (nine tenths of it the copy out of the
weights, the rest sealing), once while training goes on and once with the copy awaited before the next forward
pass, which is what a trainer without `hold_weights` does. Ways take turns of a few steps; ratios are medians
over turns, each against the turn without publishing beside it; `waited` is what optimizers waited for copies.
"""

import argparse
import asyncio
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.tiny import make_message, make_qwen3
from protocol.messages import Message, PolicyPublished, Ready, Retire, TrainStepFinished
from protocol.settings import (
    ModelSettings,
    RewardSettings,
    RolloutSettings,
    TrainerSettings,
    WeightsSettings,
    WorkerSettings,
)
from workers.trainer.publishing.copies import Copies
from workers.trainer.publishing.publisher import Publisher
from workers.trainer.worker import TrainerWorker

ALONE, PUBLISHED, SLOW, AWAITED = WAYS = (
    "nothing published",
    "every version published",
    "publishing as long as a step",
    "the same, awaited before the next step",
)


COPY = 0.9  # of the time of publishing, where it is made longer


Heard = TypeVar("Heard", bound=Message)


class Loop:
    """The other end of the trainer's link, in this process."""

    endpoint, weights_key = "tcp://127.0.0.1:1", None

    def __init__(self) -> None:
        self.arrived, self._heard = asyncio.Event(), asyncio.Event()
        self._inbox: deque[tuple[Message, tuple[bytes, ...]]] = deque()
        self._said: deque[Message] = deque()

    def wake(self) -> None:
        self.arrived.set()

    def receive_nowait(self) -> tuple[Message, tuple[bytes, ...]] | None:
        if self._inbox:
            return self._inbox.popleft()
        self.arrived.clear()
        return None

    def send(self, message: Message, *_: bytes) -> None:
        self._said.append(message)
        self._heard.set()

    def tell(self, message: Message, *frames: bytes) -> None:
        self._inbox.append((message, frames))
        self.arrived.set()

    async def hear(self, kind: type[Heard]) -> Heard:
        """The next word of this kind; versions that were published before it are retired."""
        while True:
            while self._said:
                message = self._said.popleft()
                if isinstance(message, PolicyPublished):
                    self.tell(Retire(message.policy_version - 1))
                if isinstance(message, kind):
                    return message
            self._heard.clear()
            await self._heard.wait()


class Delay:
    """How long copies last, and whether the trainer waits for them at once."""

    def __init__(self) -> None:
        self.seconds, self.is_awaited = 0.0, False
        write, seal, begin = Publisher.write, Publisher.seal, Copies.begin

        def write_slowly(publisher: Publisher, version: int, tensors: Any) -> Any:
            began = time.perf_counter()
            written = write(publisher, version, tensors)
            time.sleep(max(0.0, COPY * self.seconds - (time.perf_counter() - began)))
            return written

        def seal_slowly(publisher: Publisher, written: Any) -> Any:
            time.sleep((1 - COPY) * self.seconds)
            return seal(publisher, written)

        def begin_and_wait(copies: Copies) -> Any:
            copying = begin(copies)
            if self.is_awaited:
                copying.result()
            return copying

        Publisher.write, Publisher.seal, Copies.begin = write_slowly, seal_slowly, begin_and_wait


async def measure(options: argparse.Namespace, directory: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a step, and those of waiting for a copy, of each turn of each way."""
    settings = WorkerSettings(
        run_dir=directory, seed=0, steps=10**6, model=ModelSettings(), reward=RewardSettings(),
        rollout=RolloutSettings(), weights=WeightsSettings(directory=directory),
        trainer=TrainerSettings(max_tokens_per_microbatch=1024, minibatches=1),
    )  # fmt: skip
    (Path(directory) / "config.yaml").touch()  # which the controller of a run has written
    link: Any = Loop()
    worker, delay, version = TrainerWorker(settings, directory), Delay(), 0
    running = asyncio.create_task(worker.run(link))
    await link.hear(Ready)
    rng = np.random.default_rng(0)
    train, frames = make_message((rng.integers(20, 120, options.sequences) + 8).tolist())
    turns: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(options.turns + 1):
        for way in WAYS:
            alone_s = median([took for took, _ in turns[ALONE]] or [0.0])
            delay.seconds = alone_s if way in (SLOW, AWAITED) else 0.0
            delay.is_awaited = way == AWAITED
            seconds, waited = [], []
            for _ in range(options.steps + 1):
                began = time.perf_counter()
                link.tell(replace(train, train_version=version, is_published=way == ALONE), *frames)
                finished = await link.hear(TrainStepFinished)
                version += 1
                seconds.append(time.perf_counter() - began)
                waited.append(dict(finished.metrics).get("time_s/copy", 0.0))
            if number:  # the first turn warms up; the first step of each waits for no copy of its own way
                turns[way].append((fmean(seconds[1:]), fmean(waited[1:])))
    worker.drain()
    await running
    return turns


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--turns", type=int, default=5, help="of each way")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--sequences", type=int, default=8)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        model = make_qwen3(layers=4, hidden=options.hidden)
        model.save_pretrained(directory)
        size = sum(weight.numel() for weight in model.parameters())
        found = asyncio.run(measure(options, str(Path(directory))))
    print(f"{size / 1e6:.1f} million weights, {options.turns} turns of {options.steps} steps each way")
    for way, turns in found.items():
        ratio = median(alone / took for (alone, _), (took, _) in zip(found[ALONE], turns, strict=True))
        took, waited = (median(column) * 1e3 for column in zip(*turns, strict=True))
        print(f"{way:>40} {took:8.1f} ms a step, {waited:6.1f} ms waited  {ratio:5.2f} of the steps/s alone")


if __name__ == "__main__":
    main()
