"""Response lengths of a simulated run, as a function of the seed, the group and the member alone.

Invariants: a response that continues elsewhere keeps its length; lengths within a group are correlated by a
Gaussian copula, so the distribution of a single length does not depend on the correlation; never above the
cap.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple

from protocol.errors import ConfigError

NORMAL = NormalDist()
FIRST_HELD_OUT = 1 << 40  # groups from here on are of held-out prompts
TURNS_APART = 1 << 17  # members of a group are fewer, and turns times this are below 2 ** 30
CLASSES = 2000  # equally likely quantiles that `mean` and the bounds average over


class Distribution(NamedTuple):
    """A length distribution; fields as in `simulation.workload`, all in tokens."""

    kind: str
    cap: int
    low: int
    median: float
    sigma: float
    alpha: float
    long_share: float
    lengths: tuple[int, ...] = ()  # sorted; of a trace

    def quantile(self, u: float) -> int:
        """The length below which a share `u` (0 < u < 1) of the responses lies."""
        try:
            drawn = round(self._drawn(u))
        except OverflowError:  # of a very wide distribution: more than any float
            drawn = self.cap
        return max(1, min(self.cap, max(self.low, drawn)))

    def _drawn(self, u: float) -> float:
        """`quantile` without its bounds. Raises: OverflowError."""
        match self.kind:
            case "lognormal":
                return self.median * exp(self.sigma * NORMAL.inv_cdf(u))
            case "bimodal":
                return self.cap if u >= 1 - self.long_share else self.low
            case "power_law":
                return self.low * (1 - u) ** (-1 / self.alpha)
            case "uniform":
                return self.low + u * (self.cap - self.low)
            case "trace":
                return self.lengths[int(u * len(self.lengths))]
            case _:
                return self.low

    def sample(self) -> list[int]:
        """Equally likely lengths, sorted, that represent the whole distribution."""
        return [self.quantile((i + 0.5) / CLASSES) for i in range(CLASSES)]

    def mean(self) -> float:
        """Mean length in tokens."""
        return sum(self.sample()) / CLASSES


LOW_SHARES = {
    "lognormal": 1 / 512,
    "bimodal": 1 / 12,
    "power_law": 1200 / 40960,
    "uniform": 1 / 16,
    "fixed": 1.0,
}
MEDIAN_SHARE = 3000 / 16384


def make_distribution(
    kind: str, *, cap: int, low: int | None = None, median: int | None = None, sigma: float = 0.9,
    alpha: float = 1.2, long_share: float = 0.1, lengths: Sequence[int] = (),
) -> Distribution:  # fmt: skip
    """A distribution whose missing numbers are shares of the cap.

    Raises: ConfigError if low > cap, or a trace is empty.
    """
    if kind == "trace" and not lengths:
        raise ConfigError(
            "simulation.workload.kind is `trace`, but simulation.workload.trace names no run with finished "
            "responses; give the run.db of a run that made at least one train step."
        )
    if low is None:
        low = 1 if kind == "trace" else max(1, round(cap * LOW_SHARES[kind]))
    if low > cap:
        raise ConfigError(
            f"simulation.workload.low_tokens is {low}, more than rollout.max_response_tokens, which is "
            f"{cap}; give at most that, or raise the cap."
        )
    middle = median if median is not None else cap * MEDIAN_SHARE
    return Distribution(kind, cap, low, middle, sigma, alpha, long_share, tuple(sorted(lengths)))


class Workload:
    """Lengths of all responses of one run."""

    def __init__(self, distribution: Distribution, *, seed: int, group_correlation: float = 0.0,
                 prompt_tokens: int = 512, prompts: int = 0) -> None:  # fmt: skip
        """`group_correlation`: of the normal scores of the responses to one prompt, 0 to 1.

        `prompts`: the number of prompts, each once per epoch, in another order each time; 0: they never
        repeat.
        """
        self.distribution, self.prompt_tokens, self.prompts = distribution, prompt_tokens, prompts
        self._seed = seed
        self._orders: dict[int, list[int]] = {}  # by epoch
        self._key = seed.to_bytes(16, "little", signed=True)
        self._shared, self._own = sqrt(group_correlation), sqrt(1 - group_correlation)

    def length(self, group: int, member: int, turn: int = 0) -> int:
        """Tokens of a response, or of one turn of it."""
        u = self._uniform(group, member + TURNS_APART * turn)
        if self._shared:
            shared = NORMAL.inv_cdf(self._uniform(self.prompt(group), -1))
            score = self._shared * shared + self._own * NORMAL.inv_cdf(u)
            u = min(max(NORMAL.cdf(score), 1e-12), 1 - 1e-12)
        return self.distribution.quantile(u)

    def prompt(self, group: int) -> int:
        """The number of a group's prompt."""
        if not self.prompts or group >= FIRST_HELD_OUT:
            return group
        epoch, place = divmod(group, self.prompts)
        if epoch not in self._orders:
            self._orders[epoch] = list(range(self.prompts))
            random.Random(f"{self._seed}/epoch/{epoch}").shuffle(self._orders[epoch])
        return self._orders[epoch][place]

    def _uniform(self, group: int, member: int) -> float:
        word = group.to_bytes(8, "little") + member.to_bytes(4, "little", signed=True)
        drawn = int.from_bytes(blake2b(word, digest_size=7, key=self._key).digest(), "little")
        return (drawn + 0.5) / (1 << 56)


def classes(lengths: Sequence[int], count: int) -> list[tuple[float, float]]:
    """Sorted, equally likely lengths as at most `count` classes of (length, share).

    Each class is the mean of equally many lengths, except that equal lengths at a class edge stay together,
    so that an atom keeps its weight.
    """
    found: list[tuple[float, float]] = []
    begin = 0
    for i in range(count):
        end = round(len(lengths) * (i + 1) / count)
        if end <= begin:
            continue
        end = max(end, bisect_right(lengths, lengths[end - 1])) if lengths[end - 1] == lengths[begin] else end
        part = lengths[begin:end]
        found.append((sum(part) / len(part), len(part) / len(lengths)))
        begin = end
    return found
