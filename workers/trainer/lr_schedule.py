"""The learning rate of a train step.

Invariant: a pure function of the step, so there is no scheduler whose state a checkpoint would have to hold.
"""

import math

from protocol.settings import TrainerSettings


def lr_share(options: TrainerSettings, *, step: int, steps: int) -> float:
    """Share of the peak rate in train step `step` (from 0) of `steps`: a linear rise, then `lr_schedule`.

    It is 1 in the last step of the rise and in the one after it, and `lr_end` after the last of all, so that
    each step trains. Source: transformers' `get_cosine_schedule_with_warmup`, without its first step of 0.
    """
    if step < options.warmup_steps:
        return (step + 1) / options.warmup_steps
    left = max(1, steps - options.warmup_steps)
    done = min(1.0, (step - options.warmup_steps) / left)
    share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}
    return options.lr_end + (1 - options.lr_end) * share[options.lr_schedule]
