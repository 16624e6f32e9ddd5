"""Upper bound on throughput if a sampler makes batches of responses of about one length.

Invariants: as in `bounds`, and valid for any order of the batches of a window: a response lives in the
periods of max_staleness + 1 batches, and each period is in as many windows, so the windows of all batches
together are max_staleness + 1 times as long as all periods. With batches of one kind it is the bound of
`bounds`.

It is the linear program of `bounds` with the classes of lengths of every batch; it minimizes the time of all
batches of a window. The lengths in a batch are random among the prompts that the order puts into it.
"""

import random
from functools import lru_cache
from itertools import pairwise
from math import sqrt

import numpy as np

from controller.config.models import Config
from controller.simulation.bounds import Batches, Demand, shortest_s, with_tail
from controller.simulation.simulated_workers import distribution_of
from workers.simulated.workload import NORMAL, Distribution

PROMPTS, RESPONSES = 4_000, 4  # that represent the workload, drawn from one seed
CLASSES, TAIL_CLASSES = 14, 5  # of each batch


def similar_bound(config: Config, *, seen: int) -> float:
    """Trajectories per second that no policy exceeds if prompts are ordered by mean length so far.

    `seen`: earlier responses to each prompt, from which the order is made; their lengths are correlated with
    the next ones by the workload's `group_correlation`.
    """
    demand, staleness = Demand.of(config), config.staleness
    asked = (demand, distribution_of(config), staleness.sampler_batches, seen)
    return staleness.sampler_batches * demand.batch / _window_s(*asked, staleness.max_staleness)


@lru_cache(maxsize=64)  # several strategies have the same bound
def _window_s(demand: Demand, lengths: Distribution, count: int, seen: int, max_staleness: int) -> float:
    return shortest_s(demand, batches_of(demand.correlation, lengths, count, seen=seen), max_staleness)


def batches_of(correlation: float, distribution: Distribution, count: int, *, seen: int) -> list[Batches]:
    """The `count` batches of a window, the batch of the shortest responses first."""
    draw = random.Random(0)
    own, shared = sqrt(1 - correlation), sqrt(correlation)
    prompts: list[tuple[float, float, list[int]]] = []  # the mean of earlier scores, what they share, lengths
    for _ in range(PROMPTS):
        common = shared * draw.gauss(0, 1)
        scores = (common + own * draw.gauss(0, 1) for _ in range(RESPONSES))
        lengths = [distribution.quantile(min(max(NORMAL.cdf(score), 1e-9), 1 - 1e-9)) for score in scores]
        prompts.append((common + own / sqrt(seen) * draw.gauss(0, 1), common, lengths))
    prompts.sort()
    edges = [round(PROMPTS * number / count) for number in range(count + 1)]
    return [
        Batches(
            with_tail(sorted(length for *_, lengths in prompts[first:last] for length in lengths),
                      CLASSES, TAIL_CLASSES),
            np.array([common for _, common, _ in prompts[first:last]]),
        )
        for first, last in pairwise(edges)
    ]  # fmt: skip
