"""Upper bounds on the throughput of any scheduler on a simulated cluster.

Invariants: a bound holds for every policy that trains every response it starts and never breaks the staleness
bound; it is fluid, steady and clairvoyant, so it is not always reached. It assumes batches of random groups:
a scheduler that sorts groups in flight by length makes other batches, and may exceed it. Groups: all members
of a group have to fit the same window; a group's wait for its slowest member is counted only by this.

The program: decode steps are sorted by how long they take, from s_k to s_k+1; the last kind has no end.
Variables: f_ck, share of the tokens of a class of lengths c decoded in steps of kind k; y_k, instance
seconds in such steps; n_k, how many there are; z_k, share of the prefill there; and the period. Each step
pays its fixed part, its compute, its reading of the KV cache (each token with the mean context of its
response) and its prefill; the KV of those that decode fits, where siblings share their prompt as far as can
be. A response counts s_k for each of its steps of kind k, the least that it can take; all y_k together
have to fit into the instances' time. And w_b, the mean window of the batches whose longest response is of
class b: what the staleness bound leaves to responses. It is no shorter than that response alone, and the
responses of a class take no longer than the windows of their batches do on average; the windows of all
batches together are as long as (max_staleness + 1) of all periods, less what each window loses. So whatever a
policy does is a point of the program, however coarse the kinds are, and the least period is no longer than
its own. Finer kinds come closer; most are near the fastest step, where the longest responses run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from controller.config.models import Config
from controller.simulation.charges import train_token_s
from controller.simulation.simulated_workers import distribution_of, step_cost
from workers.simulated import StepCost
from workers.simulated.physics import BLOCK
from workers.simulated.workload import NORMAL, classes

LENGTH_CLASSES = 48
TAIL, TAIL_CLASSES = (
    0.04,
    20,
)  # the longest responses decide at small bounds: one class of the last 2 % would hide them
STEP_KINDS = 128
SLOWEST_STEPS = 20.0  # times the fastest step; slower steps are of one kind
COMMON_SCORES = 1_000  # equally likely scores that represent all prompts
LEAST_CHANCE = 1e-6  # rarer kinds of batches count as batches with the longest responses
NEAR_FASTEST = 1.5  # 1: edges of the kinds are a geometric series; more: finer kinds of fast steps


@dataclass(frozen=True, slots=True)
class Demand:
    """The inputs of the bound, in seconds, tokens and requests."""

    cost: StepCost
    classes: tuple[tuple[float, float], ...]  # (response tokens, share of the responses)
    prompt_tokens: int
    prefill_tokens: float  # per response: a prompt that siblings share is prefilled once
    held_tokens: float  # of KV per response beside its own: siblings share a prompt
    batch: int  # responses of a train step
    group_size: int
    correlation: float  # of the normal scores of the lengths in a group
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
            group_size=rollout.group_size,
            correlation=simulation.workload.group_correlation,
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
    """Classes (length, share) of sorted, equally likely lengths; the longest, TAIL, are in finer classes."""
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
    """Trajectories per second that no policy can exceed without a bound on staleness."""
    demand = Demand.of(config)
    return demand.batch / shortest_period_s(demand, None)


@lru_cache(maxsize=256)
def shortest_period_s(demand: Demand, max_staleness: int | None, kinds: int = STEP_KINDS) -> float:
    """Least seconds from one train step to the next; `max_staleness` None: without a staleness bound.

    `kinds`: number of kinds of decode steps; fewer kinds give a shorter period, never a longer one.
    """
    middles = (np.arange(COMMON_SCORES) + 0.5) / COMMON_SCORES
    common = sqrt(demand.correlation) * np.array([NORMAL.inv_cdf(middle) for middle in middles])
    mixed = Batches(demand.classes, common)
    return shortest_s(demand, [mixed], max_staleness, kinds)


class Batches(NamedTuple):
    """Batches whose groups come from the same prompts."""

    classes: tuple[tuple[float, float], ...]  # (response tokens, share of the responses), shortest first
    common: Any  # (prompts,): the common part of the normal scores of a prompt's responses


def shortest_s(
    demand: Demand, batches: Sequence[Batches], max_staleness: int | None, kinds: int = STEP_KINDS
) -> float:
    """Least seconds for one batch of each of `batches`; `max_staleness` None: without a staleness bound."""
    from scipy import sparse
    from scipy.optimize import linprog  # late: only bounds need it

    count = len(batches)
    every = tuple((length, share / count) for one in batches for length, share in one.classes)
    program = program_of(replace(demand, classes=every), kinds)
    capacity = demand.capacity / (count * demand.batch)  # for each response
    columns, windows = program.busy.shape[1], len(every)
    rows = [
        sparse.hstack([program.rows, sparse.csr_matrix((len(program.limits), windows + 1))]),
        sparse.hstack([program.busy, sparse.csr_matrix((1, windows)), [[-capacity]]]),
    ]
    limits, alone = [program.limits, np.zeros(1)], np.zeros(windows)
    if max_staleness is not None:
        made = [composition_of(one, demand) for one in batches]
        around = sparse.block_diag([one.around for one in made])
        longest = np.concatenate([one.longest for one in made])
        alone = np.array([alone_s(demand, length) / demand.fastest for length, _ in every])
        rows += [
            sparse.hstack([program.latencies, -demand.fastest * around, sparse.csr_matrix((windows, 1))]),
            sparse.csr_matrix(np.concatenate([np.zeros(columns), longest, [-(max_staleness + 1.0)]])),
        ]
        limits += [np.zeros(windows), np.array([-count * demand.lost_s])]
    equal: Any = sparse.hstack([program.equal, sparse.csr_matrix((program.equal.shape[0], windows + 1))])
    matrix: Any = sparse.vstack(rows)
    cost = np.zeros(columns + windows + 1)
    cost[-1] = 1.0
    least = [*[(0.0, None)] * columns, *((one, None) for one in alone), (count * demand.train_s, None)]
    solved: Any = linprog(
        cost, A_ub=matrix.tocsr(), b_ub=np.concatenate(limits), A_eq=equal.tocsr(),
        b_eq=np.ones(equal.shape[0]), bounds=least, method="highs",
    )  # fmt: skip
    assert solved.status == 0, solved.message
    return float(solved.fun)


class Composition(NamedTuple):
    """The lengths that meet in a random batch, by n classes of lengths."""

    longest: Any  # (n,): chance that the longest response of a batch is of this class
    around: Any  # (n, n): of the responses of a class, the share in batches whose longest is of each class


def composition_of(batches: Batches, demand: Demand) -> Composition:
    """The composition of batches, from the group size and the correlation of the demand."""
    from scipy.special import ndtr

    shares = np.array([share for _, share in batches.classes])
    size, groups = demand.group_size, max(1, demand.batch // demand.group_size)
    own = max(sqrt(1 - demand.correlation), 1e-3)
    low, high = np.full(len(shares), -50.0), np.full(len(shares), 50.0)
    for _ in range(60):  # edges of the classes as scores
        middle = (low + high) / 2
        is_low = ndtr((middle - batches.common[:, None]) / own).mean(axis=0) < np.cumsum(shares)
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    up_to = ndtr((high - batches.common[:, None]) / own)  # (prompts, n): a response is of this class or less
    up_to[:, -1] = 1.0
    in_class = np.diff(up_to, axis=1, prepend=0.0)
    whole = (up_to**size).mean(axis=0)  # a group, likewise
    # a response of this class, in a group whose longest is of that class or less
    one_of = in_class.T @ up_to ** (size - 1) / len(batches.common)
    upper = np.triu(one_of * whole ** (groups - 1) / in_class.mean(axis=0)[:, None])
    longest, around = np.diff(whole**groups, prepend=0.0), np.diff(upper, axis=1, prepend=0.0)
    is_rare = (longest < LEAST_CHANCE)[None, :] | (around < LEAST_CHANCE)
    is_rare[:, -1] = False
    around[:, -1] += np.where(is_rare, around, 0.0).sum(axis=1)
    return Composition(np.where(longest < LEAST_CHANCE, 0.0, longest), np.where(is_rare, 0.0, around))


def alone_s(demand: Demand, length: float) -> float:
    """Seconds of a response of this length that runs alone."""
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
    """The linear program of a mean response's demand on the instances, with `kinds` kinds of steps."""
    from scipy import sparse

    cost = demand.cost
    lengths = np.array([length for length, _ in demand.classes])
    tokens = np.array([share for _, share in demand.classes]) * lengths
    fastest_s = cost.decode_s(1) + cost.decode_context_s * demand.prompt_tokens
    from_s = fastest_s * SLOWEST_STEPS ** (np.linspace(0.0, 1.0, kinds) ** NEAR_FASTEST)
    to_s = np.append(from_s[1:], 0.0)
    each, none = sparse.identity(kinds), sparse.csr_matrix((kinds, kinds))
    pairs_s = cost.prefill_pair_s * demand.prefill_tokens * demand.prompt_tokens

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
            pairs_s + cost.token_s * demand.prefill_tokens,
        ),
        row((demand.held_tokens + lengths / 2) / demand.kv_tokens, none, -each),
        row((zeros + 1) / demand.rows, none, -each),
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
