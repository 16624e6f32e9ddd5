"""The learning rate of a train step.

Invariant: a pure function of the step, so there is no scheduler whose state a checkpoint would have to hold.
"""

import math

from protocol.settings import TrainerSettings


def lr_share(options: TrainerSettings, *, step: int, steps: int) -> float:
    """Share of the peak rate in train step `step` (from 0) of `steps`: a linear rise, then `lr_schedule`.

    It is 1 from step `warmup_steps - 1`, and `lr_end` in the last one and after it.
    """
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    left = max(1, steps - options.warmup_steps)
    done = min(1.0, (step + 1 - options.warmup_steps) / left)
    share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return options.lr_end + (1 - options.lr_end) * share[options.lr_schedule]
