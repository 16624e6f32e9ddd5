"""Predicts the final length of a response from its tokens so far, finished siblings and earlier responses.

Invariants:
- Memory and the cost of a call are bounded: BINS bins of length, older evidence fades, tables are rebuilt
  only when a fiftieth of the evidence is new.
- A response that was cut short counts as "at least this long", never "this long".
- Siblings count only as far as finished groups have shown that siblings are alike.

Lengths are grouped in bins 1/16 of an octave wide (narrower than a token at first). Survival is the product
of the bins' 1 - hazard (Kaplan, Meier 1958). Siblings tilt it: log lengths are taken as normal with the
correlation `rho` inside a group, and each bin is weighted by posterior over prior density, so that the shape
of the distribution (two modes, a limit) stays, and at rho = 0 nothing changes.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, log1p, log2

import numpy as np

from protocol.errors import LocalError

BINS = 256
PER_OCTAVE = 16
LINEAR = 16.0  # tokens up to which bins are about equally wide
STEPS = 8  # tables per standard deviation of the siblings' shift
FARTHEST = 4 * STEPS
NEAR = 0.9
MAX_RHO = 0.95  # siblings that are nearly equal would leave no bin with a weight


class LengthModel:
    """The distribution of response lengths in one run, and predictions for running responses."""

    def __init__(self, max_tokens: int, *, memory: int = 10_000) -> None:
        """`memory`: an observation `memory` responses ago weighs 1/e; about 20 batches, as lengths drift."""
        self._max = max_tokens
        self._per_octave = min(PER_OCTAVE, (BINS - 2) / log2(1 + max_tokens / LINEAR))
        count = int(self._position(max_tokens)) + 1
        self._edges = LINEAR * (np.exp2(np.arange(count + 1) / self._per_octave) - 1)
        self._ended, self._tokens, self._cut = ([0.0] * count for _ in range(3))
        self._weight, self._growth = 1.0, exp(1 / memory)  # newer ones weigh more, instead of all others less
        self._fresh, self._fresh_limit = 1, 1
        self._groups = Likeness(memory)
        self._prior = np.minimum(max_tokens, np.maximum(1.5 * self._edges, max_tokens / 4))
        self._rho = 0.0
        self._rebuild()

    @property
    def rho(self) -> float:
        """Correlation of log lengths inside a group, a standard error below its estimate; 0 if unknown."""
        return self._groups.rho()

    def observe(self, tokens: int, is_cut: bool) -> None:
        """Learn from a response that has ended with so many tokens.

        `is_cut`: it was cut short. At max_tokens that makes no difference.
        """
        tokens = min(max(tokens, 0), self._max)
        bin = int(self._position(tokens))
        if is_cut and tokens < self._max:
            self._cut[bin] += self._weight
        else:
            self._ended[bin] += self._weight
            self._tokens[bin] += self._weight * tokens
        self._weight *= self._growth
        self._fresh += 1
        if self._weight > 1e100:
            for column in (self._ended, self._tokens, self._cut):
                column[:] = [value / self._weight for value in column]
            self._weight = 1.0

    def observe_group(self, lengths: Sequence[int]) -> None:
        """Learn how alike the lengths of a finished group are. Call `observe` for each of them as well."""
        self._groups.observe(lengths)

    def total(self, so_far: int, siblings: Sequence[int] = ()) -> float:
        """Expected final length, in tokens, of a running response that has `so_far`.

        `siblings`: final lengths of responses to the same prompt, now or in the past. Without any evidence
        max(1.5 so_far, max_tokens / 4).
        """
        if so_far >= self._max:
            return float(self._max)
        if self._fresh >= self._fresh_limit:
            self._rebuild()
        totals = self._tilted(siblings) if siblings and self._rho else self._totals
        position = self._per_octave * log2(1.0 + so_far / LINEAR)
        bin = int(position)
        low, least = totals[bin], so_far + 1.0
        expected = low + (totals[bin + 1] - low) * (position - bin)
        if expected < least:  # inlined: called for each response at each look
            expected = least
        return expected if expected < self._max else float(self._max)

    def keep_up(self, so_far: int) -> None:
        """Rebuild the tables whenever `total` would, without computing a prediction."""
        if self._fresh >= self._fresh_limit and so_far < self._max:
            self._rebuild()

    def quantile(self, so_far: int, q: float) -> float:
        """The length that a response with `so_far` tokens finally stays below with probability `q`.

        Raises: LocalError if q is not a probability.
        """
        if not 0 <= q <= 1:
            raise LocalError(f"quantile({so_far}, {q}): expected 0 <= q <= 1; pass a share, not percent.")
        expected = self.total(so_far)
        position = min(self._position(so_far), len(self._ended) - 1e-9)
        bin = int(position)
        alive = -(self._falling[bin] + (self._falling[bin + 1] - self._falling[bin]) * (position - bin))
        if so_far >= self._max or alive <= 1e-12 or self._at_risk[bin] < 1:
            return min(float(self._max), so_far + 2 * q * (expected - so_far))
        target = -alive * (1 - q)
        after = bisect_left(self._falling, target)
        if after >= len(self._falling):
            return float(self._max)
        low, high = self._falling[after - 1] if after else -1.0, self._falling[after]
        share = (target - low) / (high - low) if high > low else 1.0
        edge = self._edges[max(after - 1, 0)]
        found = float(edge + (self._edges[after] - edge) * share)
        return min(float(self._max), max(found, float(so_far)))

    def long_share(self) -> float:
        """The share of responses that are about as long as the longest: over NEAR of the 99 % quantile."""
        position = self._position(NEAR * self.quantile(0, 0.99))  # which rebuilds the tables if it is due
        return -self._falling[min(round(position), len(self._falling) - 1)]

    def _position(self, tokens: float) -> float:
        return self._per_octave * log2(1.0 + tokens / LINEAR)

    def _rebuild(self) -> None:
        """Compute the tables from all observations."""
        ended, cut = np.array(self._ended) / self._weight, np.array(self._cut) / self._weight
        seen = float(ended.sum() + cut.sum())
        at_risk = np.cumsum((ended + cut)[::-1])[::-1]
        hazard = ended / np.maximum(at_risk - cut / 2, 1e-12)
        surviving = np.concatenate(([1.0], np.cumprod(1.0 - np.minimum(hazard, 1.0))))
        middles = (self._edges[:-1] + self._edges[1:]) / 2
        lengths = np.where(
            ended > 0, np.array(self._tokens) / np.maximum(ended * self._weight, 1e-300), middles
        )
        # responses longer than the longest that ended are taken to end where the prior says
        last = int(np.flatnonzero(at_risk)[-1]) if seen or at_risk.any() else 0
        self._lengths = np.append(lengths, self._prior[last])
        self._mass = np.append(-np.diff(surviving), surviving[-1])
        self._at_risk, self._falling = np.append(at_risk, 0.0), (-surviving).tolist()
        self._logs = np.log1p(self._lengths)
        self._mean = float(self._mass @ self._logs)
        self._deviation = float(self._mass @ (self._logs - self._mean) ** 2) ** 0.5
        self._rho = self._groups.rho() if self._deviation > 1e-3 else 0.0
        self._tables: dict[tuple[int, int], list[float]] = {}
        self._untilted = self._prior
        self._untilted = self._expected(self._mass)
        self._totals: list[float] = self._untilted.tolist()
        self._fresh, self._fresh_limit = 0, 1 + int(seen / 50)

    def _expected(self, mass: np.ndarray) -> np.ndarray:
        """Expected final length at each edge, for this mass of the bins; the prior counts as one response."""
        left = np.cumsum(mass[::-1])[::-1]
        tokens = np.cumsum((mass * self._lengths)[::-1])[::-1]
        known = left > 1e-250
        expected = np.where(known, tokens / np.where(known, left, 1.0), self._untilted)
        return (expected * self._at_risk + self._prior) / (self._at_risk + 1.0)

    def _tilted(self, siblings: Sequence[int]) -> list[float]:
        """The table of totals for such siblings, cached."""
        count, rho = len(siblings), self._rho
        shrink = count * rho / (1.0 + (count - 1) * rho)
        offset = shrink * (sum(map(log1p, siblings)) / count - self._mean)
        step = max(-FARTHEST, min(FARTHEST, round(offset * STEPS / self._deviation)))
        level = count if count < 4 else min(64, 1 << (count.bit_length() - 1))
        table = self._tables.get((level, step))
        if table is None:
            table = self._tables[level, step] = self._tilt(level, step)
        return table

    def _tilt(self, count: int, step: int) -> list[float]:
        variance = self._deviation**2
        narrowed = variance * (1.0 - self._rho * count * self._rho / (1.0 + (count - 1) * self._rho))
        away = self._logs - self._mean
        powers = away**2 / (2 * variance) - (away - step * self._deviation / STEPS) ** 2 / (2 * narrowed)
        powers = np.where(self._mass > 0, powers, -np.inf)
        return self._expected(self._mass * np.exp(powers - powers.max())).tolist()


class Likeness:
    """Running estimate of the intraclass correlation of log lengths."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._groups = self._members = self._sum = self._squares = self._products = 0.0

    def observe(self, lengths: Sequence[int]) -> None:
        """Learn from one finished group; groups of one are ignored."""
        count = len(lengths)
        if count < 2:
            return
        logs = [log1p(max(0, length)) for length in lengths]
        total, squares = sum(logs), sum(value * value for value in logs)
        keep = exp(-count / self._memory)
        self._groups = self._groups * keep + 1
        self._members = self._members * keep + count
        self._sum = self._sum * keep + total
        self._squares = self._squares * keep + squares
        self._products = self._products * keep + (total * total - squares) / (count - 1)

    def rho(self) -> float:
        """The estimate less its standard error, 0 to MAX_RHO.

        Source: Fisher 1925, standard error of the intraclass correlation.
        """
        if self._groups < 2:
            return 0.0
        mean, size = self._sum / self._members, self._members / self._groups
        variance = self._squares / self._members - mean * mean
        if variance < 1e-6:
            return 0.0
        found = min(1.0, max(0.0, (self._products / self._members - mean * mean) / variance))
        doubt = (1 - found) * (1 + (size - 1) * found) * (2 / (size * (size - 1) * self._groups)) ** 0.5
        return min(MAX_RHO, max(0.0, found - doubt))
