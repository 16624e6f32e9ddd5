"""Upper bound on throughput where each batch holds responses of about one length, as a sampler makes them.

Invariants: as in `bounds`, and valid for any order of the batches of a window: a response lives in the
periods of max_staleness + 1 batches, and each period is in so many windows, so the windows of all batches
together are so many times as long as all periods. Batches of one kind make it the bound of `bounds`.

The linear program of `bounds`, with classes of lengths of every batch and the time of all of them, which is
least. What lengths meet in a batch is chance among the prompts that the order puts into it.
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

PROMPTS, RESPONSES = 4_000, 4  # that stand for the workload, drawn from one seed
CLASSES, TAIL_CLASSES = 14, 5  # of each batch


def similar_bound(config: Config, *, seen: int) -> float:
    """Trajectories per second that no policy exceeds with batches ordered by an exact mean of earlier ones.

    `seen`: earlier responses to each prompt that the order is made by; their lengths share the workload's
    `group_correlation` with the next ones.
    """
    demand, staleness = Demand.of(config), config.staleness
    asked = (demand, distribution_of(config), staleness.sampler_batches, seen)
    return staleness.sampler_batches * demand.batch / _window_s(*asked, staleness.max_staleness)


@lru_cache(maxsize=64)  # several strategies ask for the same
def _window_s(demand: Demand, lengths: Distribution, count: int, seen: int, max_staleness: int) -> float:
    return shortest_s(demand, batches_of(demand.correlation, lengths, count, seen=seen), max_staleness)


def batches_of(correlation: float, distribution: Distribution, count: int, *, seen: int) -> list[Batches]:
    """The `count` batches of a window, of the shortest responses first."""
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
