"""Engines that wait as a GPU would make a controller wait: real workers with artificial latencies.

The waiting is the point: it takes no core, so two "devices" overlap on a machine with two cores as they would
on a cluster. Everything else (model, sampling, loss, protocol) is the production code.
"""

import time

from workers.engines.interface import Sampled
from workers.engines.torch.engine import TorchEngine, make_engine
from workers.trainer.trainer import Trainer

DECODE_STEP_S = 0.02
TRAIN_STEP_S = 0.5


class SleepingEngine(TorchEngine):
    """The torch engine, whose steps take a fixed time."""

    def step(self) -> list[Sampled]:
        """One step, DECODE_STEP_S after it began."""
        began = time.perf_counter()
        sampled = super().step()
        time.sleep(max(0.0, DECODE_STEP_S - (time.perf_counter() - began)))
        return sampled


def make_sleeping_engine(settings, model_directory):
    """What `rollout.engine` names."""
    return make_engine(settings, model_directory, SleepingEngine)


class SleepingTrainer(Trainer):
    """The FSDP trainer, whose steps take a fixed time."""

    def train_step(self, train, frames):
        """One step, TRAIN_STEP_S after it began."""
        began = time.perf_counter()
        metrics = super().train_step(train, frames)
        time.sleep(max(0.0, TRAIN_STEP_S - (time.perf_counter() - began)))
        return metrics
