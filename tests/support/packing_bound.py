"""Lengths to pack, and the fewest micro-batches that they could need."""

import random
from collections.abc import Callable, Sequence

import numpy as np

DISTRIBUTIONS: dict[str, Callable[[random.Random, int], int]] = {
    "pareto": lambda source, budget: min(budget, int(budget / 50 * source.paretovariate(1.2))),
    "lognormal": lambda source, budget: min(budget, 1 + int(budget / 8 * source.lognormvariate(0, 1))),
    "uniform": lambda source, budget: source.randint(1, budget),
    "short": lambda source, budget: source.randint(1, budget // 4),
    "around a third": lambda source, budget: source.randint(budget // 3 - budget // 20, budget * 2 // 5),
    "around half": lambda source, budget: source.randint(budget * 2 // 5, budget * 3 // 5),
    "short and long": lambda source, budget: source.choice((source.randint(1, 20), budget * 3 // 4)),
}


def lower_bound(lengths: Sequence[int], max_tokens: int) -> int:
    """Micro-batches that no packing can do without.

    Source: Martello and Toth, bound L2 (1990); Fekete and Schepers, dual feasible functions (2001).
    """
    kept_B = np.sort(np.array([length for length in lengths if length <= max_tokens], dtype=np.int64))
    sums = np.concatenate([[0], np.cumsum(kept_B)])
    half, best = int(np.searchsorted(kept_B, max_tokens / 2, "right")), 0
    for smallest in np.unique(np.concatenate([[1], kept_B[:half]])):
        first, large = (
            np.searchsorted(kept_B, smallest),
            np.searchsorted(kept_B, max_tokens - smallest, "right"),
        )
        room = (large - half) * max_tokens - (sums[large] - sums[half])  # beside sequences over half
        best = max(best, len(kept_B) - half + max(0, -int((room - sums[half] + sums[first]) // max_tokens)))
    for k in range(2, 21):  # sequences just over 1 / (k + 1) of the budget go k at a time
        scaled_B = kept_B * (k + 1)
        worth_B = np.where(scaled_B % max_tokens == 0, kept_B * k, scaled_B // max_tokens * max_tokens)
        best = max(best, -(-int(worth_B.sum()) // (k * max_tokens)))
    return len(lengths) - len(kept_B) + int(best)


def fewest_sequences_first(lengths: Sequence[int], max_tokens: int) -> int:
    """Micro-batches by the rule as AReaL's paper states it (arXiv 2505.24298), for comparison."""
    batches: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        fitting = [batch for batch in batches if sum(batch) + length <= max_tokens]
        min(fitting, key=len).append(length) if fitting else batches.append([length])
    return len(batches)
