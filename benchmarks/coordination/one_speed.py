"""What is left to a scheduler that treats all responses alike: the bound, with one decode-step time for all.

Invariant: as in controller/simulation/bounds.py, fluid and steady; but short and long responses decode at the
same speed, as they do where nothing tells them apart. It is an estimate of what can be had without knowing
lengths, no bound: who has run for long is known to be no short one. Source: the 16-instance study whose
cluster the benchmark has gives the same estimate.
"""

import numpy as np

from controller.config.models import Config
from controller.simulation.bounds import SLOWEST_STEPS, Demand

STEP_TIMES = 2_000
PRECISION = 1.002  # of the period


def one_speed_bound(config: Config) -> float:
    """Trajectories per second, all responses decoding at one speed that keeps the longest within
    `max_staleness`."""
    demand = Demand.of(config)
    low = high = max(demand.train_s, 1e-6)
    while not _is_possible(demand, config.staleness.max_staleness, high):
        low, high = high, 2 * high
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        is_possible = _is_possible(demand, config.staleness.max_staleness, middle)
        low, high = (low, middle) if is_possible else (middle, high)
    return demand.batch / high


def _is_possible(demand: Demand, max_staleness: int, period_s: float) -> bool:
    cost = demand.cost
    window_s = ((max_staleness + 1) * period_s - demand.lost_s) * demand.fastest
    longest = max(length for length, _ in demand.classes)
    fastest_s = cost.decode_s(1)
    slowest_s = min(SLOWEST_STEPS * fastest_s, window_s / longest)
    if slowest_s <= fastest_s:
        return False
    steps = np.geomspace(fastest_s, slowest_s, STEP_TIMES)
    tokens = [(demand.batch * share * length, demand.prompt_tokens + length / 2)
              for length, share in demand.classes]  # fmt: skip
    made = sum(count for count, _ in tokens)
    prefilled = demand.batch * demand.prefill_tokens
    contexts = sum(count * context for count, context in tokens)
    held = contexts - made * (demand.prompt_tokens - demand.held_tokens)
    pairs_s = cost.prefill_pair_s * prefilled * demand.prompt_tokens
    by_reading = cost.decode_context_s * contexts + pairs_s
    by_token = by_reading + cost.token_s * (made + prefilled)
    with np.errstate(divide="ignore"):
        least_s = np.maximum.reduce([
            _seconds(steps, by_reading, cost.decode_base_s + cost.floor_s),
            _seconds(steps, by_token, cost.decode_base_s + cost.step_base_s),
            held * steps / demand.kv_tokens,
            made * steps / demand.rows,
        ])  # fmt: skip
    return bool(least_s.min() <= demand.capacity * period_s)


def _seconds(steps: np.ndarray, work_s: float, per_step_s: float) -> np.ndarray:
    """Instance seconds in which this work and a part of every step fit."""
    free = 1 - per_step_s / steps
    return np.where(free > 0, work_s / np.maximum(free, 1e-12), np.inf)
