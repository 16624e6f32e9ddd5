"""What the worker asks of a trainer: a built-in one, or the class that `trainer.engine` names."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from protocol.messages import Train, TrainAhead
from workers.trainer.ranks import Ranks
from workers.trainer.state import Published
from workers.trainer.token_batch import CorrectedTokens


class TrainerEngine(Protocol):
    """What `trainer.engine` names: a class that is called with the settings and the folder of the model.

    `Trainer` in workers/trainer/trainer.py says what each method does, and on which ranks.
    """

    policy_version: int
    ranks: Ranks

    def train_step(self, train: Train, frames: Sequence[bytes]) -> dict[str, float]:
        """Train on one batch; its metrics."""
        ...

    def tensors_for_publish(self) -> Published:
        """What a policy version consists of, as this rank holds it, named as in the model's files."""
        ...

    def save_checkpoint(self, policy_version: int) -> Path:
        """Write a checkpoint, and return where."""
        ...

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a checkpoint."""
        ...


@runtime_checkable
class StreamingTrainer(TrainerEngine, Protocol):
    """A trainer that `trainer.streaming` may be on with."""

    def train_ahead(self, part: TrainAhead, frames: Sequence[bytes]) -> None:
        """Make the gradients of groups of a batch that is not complete."""
        ...


@runtime_checkable
class BackgroundCheckpoints(TrainerEngine, Protocol):
    """A trainer whose checkpoints are written while it goes on."""

    def begin_checkpoint(self, policy_version: int) -> Callable[[], Path]:
        """Copy what belongs to a checkpoint; the call that is returned writes it, in any thread."""
        ...


@runtime_checkable
class TimedTrainer(TrainerEngine, Protocol):
    """A trainer that says where the time of its last step went."""

    seconds: dict[str, float]


@runtime_checkable
class MeteredTrainer(TrainerEngine, Protocol):
    """A trainer that says how much arithmetic its last step was."""

    compute: dict[str, float]


@runtime_checkable
class CorrectingTrainer(TrainerEngine, Protocol):
    """A trainer that says what its last step found of the tokens that people will read."""

    corrections: CorrectedTokens


class Holdings(NamedTuple):
    """What a trainer has on its device from one step to the next."""

    models: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]


@runtime_checkable
class ReleasingTrainer(TrainerEngine, Protocol):
    """A trainer that can share its device with instances (`placement: colocated`)."""

    def held(self) -> Holdings:
        """All whose memory is moved off the device and back, in place, between two orders."""
        ...


@runtime_checkable
class HoldingTrainer(TrainerEngine, Protocol):
    """A trainer that waits for the copy of a version before it changes a weight."""

    def hold_weights(self, copied: Callable[[], object]) -> None:
        """Call `copied` before the next change of a weight; it returns when they may be changed."""
        ...
