"""Upper bounds on throughput: what no scheduler can beat on a simulated cluster.

Invariants: a bound holds for every policy that trains every response it starts and never breaks the
staleness bound; it is fluid, steady and clairvoyant, so it is not always reached. Steady: every batch holds
every length, so batches that are too small to hold the longest can beat it by some percent. Groups: each
member of a group has to fit the same window, and a member's length has the workload's distribution whatever
the correlation, so the program per response stays a bound; that a group waits for its slowest is not charged.

The program: time is divided over decode-step times s_k. Variables: f_ck, share of the tokens of a class
of lengths c decoded at s_k; y_k, instance seconds spent at s_k; z_k, share of the prefill there. An instance
at s_k makes y_k / s_k steps, and each pays its fixed part, its compute, its reading of the KV cache and its
prefill; the KV of those that decode fits; the steps of a class take at most as long as the bound leaves it.
The least sum of y_k must fit into the instances' time; the period is found by bisection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost
from workers.simulated import StepCost
from workers.simulated.physics import BLOCK
from workers.simulated.workload import classes

LENGTH_CLASSES = 48
TAIL, TAIL_CLASSES = 0.04, 20  # the longest decide at small bounds: one class of the last 2 % hides them
STEP_TIMES = 48
SLOWEST_STEPS = 20.0  # times the fastest step; slower ones are never chosen within the KV of real devices
PRECISION = 1.002  # of the period


@dataclass(frozen=True, slots=True)
class Demand:
    """What the bound depends on; seconds, tokens, requests."""

    cost: StepCost
    classes: tuple[tuple[float, float], ...]  # (response tokens, share of the responses)
    prompt_tokens: int
    prefill_tokens: float  # per response: a prompt that siblings share is prefilled once
    batch: int  # responses of a train step
    kv_tokens: int
    rows: int
    capacity: float  # sum of the speeds of all instances
    fastest: float  # largest of them
    train_s: float  # per batch
    lost_s: float  # of a response's window: publishing, pulling, scoring, and if honest the end of training

    @classmethod
    def of(cls, config: Config) -> "Demand":
        """The demand of a configuration."""
        simulation, rollout = config.simulation, config.rollout
        found = with_tail(distribution_of(config).sample(), LENGTH_CLASSES, TAIL_CLASSES)
        prompt = min(simulation.workload.prompt_tokens, rollout.max_prompt_tokens)
        batch = config.trainer.batch_groups * rollout.group_size
        mean = sum(length * share for length, share in found)
        token_s = train_token_s(config)
        train_s = simulation.train_base_s + token_s * batch * (mean + prompt)
        last_s = train_s
        if config.trainer.streaming:  # at least one group is left for the step: the shortest
            shortest = rollout.group_size * (found[0][0] + prompt)
            last_s = simulation.train_base_s + token_s * shortest
        speeds = simulation.engine.speeds
        all_speeds = [speeds[i % len(speeds)] for i in range(rollout.instances)]
        is_honest = simulation.publish == "honest"
        return cls(
            cost=step_cost(config),
            classes=found,
            prompt_tokens=prompt,
            prefill_tokens=prompt / rollout.group_size,
            batch=batch,
            kv_tokens=simulation.engine.kv_blocks * BLOCK,
            rows=rollout.max_running,
            capacity=sum(all_speeds),
            fastest=max(all_speeds),
            train_s=train_s,
            lost_s=simulation.pull_s
            + simulation.score_s
            + (last_s + simulation.publish_s if is_honest else 0.0),
        )


def with_tail(lengths: Sequence[int], count: int, tail_count: int) -> tuple[tuple[float, float], ...]:
    """Sorted, equally likely lengths as classes of (length, share); the longest, TAIL, are in finer ones."""
    edge = round(len(lengths) * (1 - TAIL))
    parts = ((lengths[:edge], count), (lengths[edge:], tail_count))
    return tuple(
        (length, share * len(part) / len(lengths))
        for part, number in parts
        for length, share in classes(part, number)
    )


def throughput_bound(config: Config) -> float:
    """Trajectories per second that no policy with this `max_staleness` can exceed."""
    demand = Demand.of(config)
    return demand.batch / shortest_period_s(demand, config.staleness.max_staleness)


def hardware_bound(config: Config) -> float:
    """Trajectories per second of trainer and instances without any bound on staleness."""
    demand = Demand.of(config)
    return demand.batch / shortest_period_s(demand, None)


@lru_cache(maxsize=256)
def shortest_period_s(demand: Demand, max_staleness: int | None) -> float:
    """Least seconds from one train step to the next; None: staleness does not matter."""
    if max_staleness is None:
        return max(demand.train_s, _instance_s(demand, None) / demand.capacity)

    def is_possible(period_s: float) -> bool:
        window_s = ((max_staleness + 1) * period_s - demand.lost_s) * demand.fastest
        if window_s <= alone_s(demand, max(length for length, _ in demand.classes)):
            return False
        return _instance_s(demand, window_s) <= demand.capacity * period_s

    low = high = max(demand.train_s, 1e-6)
    if is_possible(low):
        return low
    while not is_possible(high := 2 * high):
        low = high
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if is_possible(middle) else (middle, high)
    return high


def alone_s(demand: Demand, length: float) -> float:
    """Seconds that a response of this length takes with nothing beside it."""
    context = demand.prompt_tokens + length / 2
    return length * (demand.cost.decode_s(1) + demand.cost.decode_context_s * context)


def _instance_s(demand: Demand, window_s: float | None) -> float:
    """Least instance seconds (of speed 1) for one batch if every response has `window_s` to run.

    inf if it cannot be.
    """
    from scipy.optimize import linprog  # late: only bounds need it

    matrix, limits, equal, kinds, _ = program(demand, window_s)
    cost = np.zeros(matrix.shape[1])
    cost[kinds * STEP_TIMES : (kinds + 1) * STEP_TIMES] = 1.0
    solved: Any = linprog(
        cost, A_ub=matrix, b_ub=limits, A_eq=equal, b_eq=np.ones(equal.shape[0]), method="highs"
    )
    return float(solved.fun) if solved.status == 0 else float("inf")


def program(demand: Demand, window_s: float | None) -> tuple[Any, Any, Any, int, Any]:
    """Rows `A v <= b` and `E v = 1` over v = (f_ck, y_k, z_k), the number of classes, and the steps s_k."""
    from scipy import sparse

    cost = demand.cost
    lengths = np.array([length for length, _ in demand.classes])
    tokens = (
        demand.batch * np.array([share for _, share in demand.classes]) * lengths
    )  # of a class, per batch
    contexts = demand.prompt_tokens + lengths / 2
    fastest_s = cost.decode_s(1)
    steps = np.geomspace(fastest_s, SLOWEST_STEPS * fastest_s, STEP_TIMES)
    each, kinds = sparse.identity(STEP_TIMES), len(lengths)
    prefilled = demand.batch * demand.prefill_tokens
    pairs_s = cost.prefill_pair_s * prefilled * demand.prompt_tokens

    def row(per_token: Any, per_step: float, prefill: float, *, is_time: bool) -> Any:
        """One inequality for each step time."""
        y = sparse.diags(per_step / steps - is_time)
        return sparse.hstack([sparse.kron(tokens * per_token, each), y, prefill * each])

    reading = cost.decode_context_s * contexts
    rows = [
        row(reading, cost.decode_base_s + cost.floor_s, pairs_s, is_time=True),
        row(
            reading + cost.token_s,
            cost.decode_base_s + cost.step_base_s,
            pairs_s + cost.token_s * prefilled,
            is_time=True,
        ),
        row(contexts, -demand.kv_tokens, 0.0, is_time=False),
        row(np.ones(kinds), -demand.rows, 0.0, is_time=False),
    ]
    limits = np.zeros(len(rows) * STEP_TIMES)
    if window_s is not None:
        spent = sparse.kron(sparse.diags(lengths / window_s), steps)
        rows.append(sparse.hstack([spent, sparse.csr_matrix((kinds, 2 * STEP_TIMES))]))
        limits = np.concatenate([limits, np.ones(kinds)])
    ones = np.ones(STEP_TIMES)
    whole = sparse.block_diag([sparse.kron(sparse.identity(kinds), ones), np.zeros((0, STEP_TIMES)), [ones]])
    return sparse.vstack(rows).tocsr(), limits, whole.tocsr(), kinds, steps
