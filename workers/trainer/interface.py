"""The methods that a trainer must have: the built-in trainer, or the class that `trainer.engine` names."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from protocol.messages import Train, TrainAhead
from workers.trainer.ranks import Ranks
from workers.trainer.state import Published
from workers.trainer.token_batch import CorrectedTokens


class TrainerEngine(Protocol):
    """A class that `trainer.engine` may name; it is called with the settings and the model's folder.

    `Trainer` in workers/trainer/trainer.py says what each method does, and on which ranks.
    """

    policy_version: int
    ranks: Ranks

    def train_step(self, train: Train, frames: Sequence[bytes]) -> dict[str, float]:
        """Train on one batch; returns its metrics."""
        ...

    def tensors_for_publish(self) -> Published:
        """The tensors of a policy version as this rank holds them, named as in the model's files."""
        ...

    def save_checkpoint(self, policy_version: int) -> Path:
        """Write `checkpoints/step_<policy_version>` of the run directory; returns its path.

        Use `write_checkpoint` (workers/trainer/checkpoints.py): a folder that lacks its files or `.complete`
        is taken for cut off when the run goes on, and is set aside.
        """
        ...

    def load_checkpoint(self, path: str | Path) -> None:
        """Continue from a checkpoint."""
        ...


@runtime_checkable
class StreamingTrainer(TrainerEngine, Protocol):
    """A trainer that supports `trainer.streaming`."""

    def train_ahead(self, part: TrainAhead, frames: Sequence[bytes]) -> None:
        """Compute the gradients of some groups before their batch is complete."""
        ...


@runtime_checkable
class BackgroundCheckpoints(TrainerEngine, Protocol):
    """A trainer whose checkpoints are written while training continues."""

    def begin_checkpoint(self, policy_version: int) -> Callable[[], Path]:
        """Copy the state of a checkpoint; returns the call that writes it, which may run in any thread."""
        ...


@runtime_checkable
class TimedTrainer(TrainerEngine, Protocol):
    """A trainer that reports the seconds of its last step by activity."""

    seconds: dict[str, float]


@runtime_checkable
class MeteredTrainer(TrainerEngine, Protocol):
    """A trainer that reports the FLOPs of its last step."""

    compute: dict[str, float]


@runtime_checkable
class CorrectingTrainer(TrainerEngine, Protocol):
    """A trainer that reports the importance corrections of the tokens in kept samples."""

    corrections: CorrectedTokens


class Holdings(NamedTuple):
    """The models and optimizers that a trainer keeps on its device from one step to the next."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]


@runtime_checkable
class ReleasingTrainer(TrainerEngine, Protocol):
    """A trainer that can share its device with instances (`placement: colocated`)."""

    def held(self) -> Holdings:
        """Models and optimizers whose memory moves off the device and back, in place, between two orders."""
        ...


@runtime_checkable
class HoldingTrainer(TrainerEngine, Protocol):
    """A trainer that waits until a version is copied before it changes a weight."""

    def hold_weights(self, copied: Callable[[], object]) -> None:
        """Call `copied` before the next change of a weight; it returns when weights may be changed."""
        ...
