"""Upper bound on throughput where each batch holds responses of about one length, as a sampler makes them.

Invariants: as in `bounds`, and valid for any order of the batches of a window: a response lives in the
periods of max_staleness + 1 batches, and each period is in so many windows, so the windows of all batches
together are so many times as long as all periods. Batches of one kind make it the bound of `bounds`.

One linear program: the variables of `bounds` for the classes of every batch, a window w_j for each batch j,
and the time P of all of them, which is least. Steps of a class of batch j take at most w_j; the sum of w_j is
at most (max_staleness + 1) P less what each window loses; instances have P.
"""

import random
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from controller.config.models import Config
from controller.simulation.bounds import Demand, alone_s, program_of, with_tail
from controller.simulation.simulated_workers import distribution_of
from workers.simulated.workload import NORMAL

PROMPTS, RESPONSES = 4_000, 4  # that stand for the workload, drawn from one seed
CLASSES, TAIL_CLASSES = 14, 5  # of each batch
Classes = tuple[tuple[float, float], ...]


def similar_bound(config: Config, *, seen: int) -> float:
    """Trajectories per second that no policy exceeds with batches ordered by an exact mean of earlier ones.

    `seen`: earlier responses to each prompt that the order is made by; their lengths share the workload's
    `group_correlation` with the next ones.
    """
    demand, kinds = Demand.of(config), batches_of(config, seen=seen)
    return len(kinds) * demand.batch / _shortest_s(demand, kinds, config.staleness.max_staleness)


def batches_of(config: Config, *, seen: int) -> list[Classes]:
    """The lengths of each batch of a window, shortest first."""
    draw, distribution = random.Random(0), distribution_of(config)
    rho = config.simulation.workload.group_correlation
    own, shared = sqrt(1 - rho), sqrt(rho)
    prompts: list[tuple[float, list[int]]] = []
    for _ in range(PROMPTS):
        common = shared * draw.gauss(0, 1)
        scores = (common + own * draw.gauss(0, 1) for _ in range(RESPONSES))
        lengths = [distribution.quantile(min(max(NORMAL.cdf(score), 1e-9), 1 - 1e-9)) for score in scores]
        prompts.append((common + own / sqrt(seen) * draw.gauss(0, 1), lengths))
    prompts.sort()
    count = config.staleness.sampler_batches
    edges = [round(PROMPTS * number / count) for number in range(count + 1)]
    return [
        with_tail(sorted(length for _, lengths in prompts[first:last] for length in lengths),
                  CLASSES, TAIL_CLASSES)
        for first, last in pairwise(edges)
    ]  # fmt: skip


def _shortest_s(demand: Demand, kinds: list[Classes], max_staleness: int) -> float:
    """Least seconds for one batch of each kind."""
    from scipy import sparse
    from scipy.optimize import linprog  # late: only bounds need it

    count = len(kinds)
    every = tuple((length, share / count) for kind in kinds for length, share in kind)
    program = program_of(replace(demand, classes=every, batch=demand.batch * count))
    columns, classes = program.busy.shape[1], len(every)
    which = np.repeat(np.arange(count), [len(kind) for kind in kinds])
    windows = sparse.csr_matrix((np.full(classes, -demand.fastest), (np.arange(classes), which)))
    rows: Any = sparse.vstack([
        sparse.hstack([program.rows, sparse.csr_matrix((program.rows.shape[0], count + 1))]),
        sparse.hstack([program.latencies, windows, sparse.csr_matrix((classes, 1))]),
        sparse.csr_matrix(np.concatenate([np.zeros(columns), np.ones(count), [-(max_staleness + 1.0)]])),
        sparse.hstack([program.busy, sparse.csr_matrix((1, count)), sparse.csr_matrix([[-demand.capacity]])]),
    ])  # fmt: skip
    right = np.concatenate([program.limits, np.zeros(classes), [-count * demand.lost_s, 0.0]])
    equals: Any = sparse.hstack([program.equal, sparse.csr_matrix((program.equal.shape[0], count + 1))])
    alone = [alone_s(demand, max(length for length, _ in kind)) / demand.fastest for kind in kinds]
    least = [*[(0.0, None)] * columns, *((one, None) for one in alone), (count * demand.train_s, None)]
    cost = np.zeros(columns + count + 1)
    cost[-1] = 1.0
    solved: Any = linprog(
        cost, A_ub=rows.tocsr(), b_ub=right, A_eq=equals.tocsr(), b_eq=np.ones(equals.shape[0]), bounds=least,
        method="highs",
    )  # fmt: skip
    assert solved.status == 0, solved.message
    return float(solved.fun)
