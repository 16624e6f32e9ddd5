"""What a trainer would publish, as a test compares it."""

import torch

from workers.trainer.sharding import gather
from workers.trainer.trainer import Trainer


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """On rank 0 all weights, whole, on the CPU, in `model.dtype`, tied ones once; elsewhere nothing.

    A copy: the next step does not touch it.
    """
    dtype = getattr(torch, trainer._settings.model.dtype)
    return gather(trainer.tensors_for_publish(), trainer.ranks, dtype=dtype)
