"""Batches in which only tokens and positions count: all other numbers are 0."""

from collections.abc import Sequence

import numpy as np

from workers.trainer.batch import TrainBatch


def plain_batch(tokens: Sequence[np.ndarray], positions: Sequence[np.ndarray]) -> TrainBatch:
    """Sequences of one group, each an episode of its own.

    `positions` says, per sequence, the places of its response's tokens.
    """
    count, scored = len(tokens), sum(len(each) for each in positions)
    return TrainBatch(
        tokens=[*tokens],
        positions=[*positions],
        groups=[0] * count,
        episodes=[*range(count)],
        is_truncated=[False] * count,
        policy_versions=np.zeros(scored, dtype=np.int64),
        outcomes=np.zeros(count, dtype=np.float32),
        rollout_logprobs=np.zeros(scored, dtype=np.float32),
        advantages=np.zeros(scored, dtype=np.float32),
    )
