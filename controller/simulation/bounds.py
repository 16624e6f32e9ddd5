"""Upper bounds on throughput: what no scheduler can beat on a simulated cluster.

Invariants: a bound holds for every policy that trains every response it starts and never breaks the
staleness bound; it is fluid, steady and clairvoyant, so it is not always reached. Steady: every batch holds
every length, so batches that are too small to hold the longest can beat it by some percent. Groups: each
member of a group has to fit the same window, and a member's length has the workload's distribution whatever
the correlation, so the program per response stays a bound; that a group waits for its slowest is not charged.

The program: decode steps are sorted by how long they take, from s_k to s_k+1; the last kind has no end.
Variables: f_ck, share of the tokens of a class of lengths c decoded in steps of kind k; y_k, instance
seconds in such steps; n_k, how many there are; z_k, share of the prefill there; and the period. Each step
pays its fixed part, its compute, its reading of the KV cache (each token with the mean context of its
response) and its prefill; the KV of those that decode fits, where siblings share their prompt as far as can
be. A response counts s_k for each of its steps of kind k, the least that it can take, and has to fit into
what the staleness bound leaves it; all y_k together have to fit into the instances' time. So whatever a
policy does is a point of the program, however coarse the kinds are, and the least period is no longer than
its own. Finer kinds come closer; most are near the fastest step, where the longest responses run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost
from workers.simulated import StepCost
from workers.simulated.physics import BLOCK
from workers.simulated.workload import classes

LENGTH_CLASSES = 48
TAIL, TAIL_CLASSES = 0.04, 20  # the longest decide at small bounds: one class of the last 2 % hides them
STEP_KINDS = 128
SLOWEST_STEPS = 20.0  # times the fastest: from there on steps are of one kind
NEAR_FASTEST = 1.5  # 1: edges of the kinds are a geometric series; more: the closer, the faster the steps


@dataclass(frozen=True, slots=True)
class Demand:
    """What the bound depends on; seconds, tokens, requests."""

    cost: StepCost
    classes: tuple[tuple[float, float], ...]  # (response tokens, share of the responses)
    prompt_tokens: int
    prefill_tokens: float  # per response: a prompt that siblings share is prefilled once
    held_tokens: float  # of KV per response beside its own tokens: siblings that run together share a prompt
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
            held_tokens=prompt / rollout.group_size,
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
def shortest_period_s(demand: Demand, max_staleness: int | None, kinds: int = STEP_KINDS) -> float:
    """Least seconds from one train step to the next; None: staleness does not matter.

    `kinds`: of steps; fewer give a period that is shorter, never longer.
    """
    from scipy import sparse
    from scipy.optimize import linprog  # late: only bounds need it

    program = program_of(demand, kinds)
    windows = [sparse.csr_matrix((0, 1))]
    rows, limits, least_s = [program.rows], [program.limits], demand.train_s
    if max_staleness is not None:
        versions = max_staleness + 1
        longest_s = alone_s(demand, max(length for length, _ in demand.classes)) / demand.fastest
        least_s = max(least_s, (demand.lost_s + longest_s) / versions)
        rows.append(program.latencies)
        count = program.latencies.shape[0]
        windows = [sparse.csr_matrix(np.full((count, 1), -versions * demand.fastest))]
        limits.append(np.full(count, -demand.lost_s * demand.fastest))
    rows.append(program.busy)
    limits.append(np.zeros(1))
    periods = sparse.vstack(
        [sparse.csr_matrix((len(program.limits), 1)), *windows, sparse.csr_matrix([[-demand.capacity]])]
    )
    columns = program.busy.shape[1]
    equal: Any = sparse.hstack([program.equal, sparse.csr_matrix((program.equal.shape[0], 1))])
    matrix: Any = sparse.hstack([sparse.vstack(rows), periods])
    cost = np.zeros(columns + 1)
    cost[-1] = 1.0
    solved: Any = linprog(
        cost, A_ub=matrix.tocsr(), b_ub=np.concatenate(limits), A_eq=equal.tocsr(),
        b_eq=np.ones(equal.shape[0]), bounds=[*[(0.0, None)] * columns, (least_s, None)], method="highs",
    )  # fmt: skip
    assert solved.status == 0, solved.message
    return float(solved.fun)


def alone_s(demand: Demand, length: float) -> float:
    """Seconds that a response of this length takes with nothing beside it."""
    context = demand.prompt_tokens + length / 2
    return length * (demand.cost.decode_s(1) + demand.cost.decode_context_s * context)


class StepProgram(NamedTuple):
    """Sparse rows over v = (f_ck, y_k, n_k, z_k): `rows v <= limits` and `equal v = 1`."""

    rows: Any
    limits: Any
    equal: Any
    latencies: Any  # of each class: the least seconds in which one of its responses ends
    busy: Any  # one row: instance seconds (of speed 1) in all


def program_of(demand: Demand, kinds: int = STEP_KINDS) -> StepProgram:
    """What one batch demands of the instances, with so many kinds of steps."""
    from scipy import sparse

    cost = demand.cost
    lengths = np.array([length for length, _ in demand.classes])
    tokens = (
        demand.batch * np.array([share for _, share in demand.classes]) * lengths
    )  # of a class, per batch
    fastest_s = cost.decode_s(1) + cost.decode_context_s * demand.prompt_tokens
    from_s = fastest_s * SLOWEST_STEPS ** (np.linspace(0.0, 1.0, kinds) ** NEAR_FASTEST)
    to_s = np.append(from_s[1:], 0.0)
    each, none = sparse.identity(kinds), sparse.csr_matrix((kinds, kinds))
    prefilled = demand.batch * demand.prefill_tokens
    pairs_s = cost.prefill_pair_s * prefilled * demand.prompt_tokens

    def row(per_token: Any, seconds: Any, steps: Any, prefill: float = 0.0) -> Any:
        """One inequality for each kind of step."""
        made = sparse.kron((tokens * per_token)[None, :], each)
        return sparse.hstack([made, seconds, steps, prefill * each]).tocsr()

    reading, zeros = cost.decode_context_s * (demand.prompt_tokens + lengths / 2), np.zeros(len(lengths))
    rows = [
        row(reading, -each, (cost.decode_base_s + cost.floor_s) * each, pairs_s),
        row(
            reading + cost.token_s,
            -each,
            (cost.decode_base_s + cost.step_base_s) * each,
            pairs_s + cost.token_s * prefilled,
        ),
        row(demand.held_tokens + lengths / 2, none, -demand.kv_tokens * each),
        row(zeros + 1, none, -demand.rows * each),
        row(zeros, -each, sparse.diags(from_s)),
        row(zeros, each, sparse.diags(-to_s))[:-1],  # the last kind has no end
    ]
    stacked: Any = sparse.vstack(rows)
    ones, classes_of = np.ones((1, kinds)), len(lengths)
    shares = sparse.kron(sparse.identity(classes_of), ones)
    spent = sparse.kron(sparse.diags(lengths), from_s[None, :])
    rest = sparse.csr_matrix((classes_of, 3 * kinds))
    return StepProgram(
        stacked,
        np.zeros(stacked.shape[0]),
        sparse.block_diag([shares, sparse.csr_matrix((0, 2 * kinds)), ones]),
        sparse.hstack([spent, rest]),
        sparse.hstack([sparse.csr_matrix((1, classes_of * kinds)), ones, sparse.csr_matrix((1, 2 * kinds))]),
    )
