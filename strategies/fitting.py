"""Learns the cost model of an instance from the status reports of the running job.

Invariants:
- Coefficients are never negative and a step never takes 0 s, whatever is reported.
- Evidence is bounded: at most MAX_BINS bins over (running, resident tokens), each with its RING latest
  latencies; a bin counts with the mean of those near their median, so a pause of the process changes nothing.
- Nothing is random and no clock is read: equal reports give equal coefficients.

The model is latency = attention_k * tokens + other_b + other_k * max(knee, n), fitted by non-negative least
squares on relative errors for each of some knees; floor = other_b + other_k * knee, attention_b is part of
other_b (the data cannot separate the two). What the data leave open (tokens always proportional to n, n
always below the knee) is decided by a weak pull to the scaled start.
"""

from collections import deque
from itertools import product
from math import exp, log, log2
from statistics import median
from typing import NamedTuple, cast

import numpy as np

from protocol.messages import InstanceStatus
from strategies.cost_model import QWEN_7B_TP1, Coefficients, prefill_s, scaled, step_latency

MAX_BINS = 64
RING = 20  # latencies kept per bin: with 5 % noise their mean is within 1.1 %
PAUSE = 2.0  # times the median of its bin: a longer latency is a pause, not the engine's
RUNNING_BINS = 2  # per octave
TOKENS_BINS = 1  # per octave
ENOUGH = 16  # usable intervals before a fit is tried
REFIT_EVERY = 20
REFIT_LATEST = 80
REFIT_EVERY_LATER = 50  # once LATER intervals are in: a refit costs as much as 100 observations
LATER = 200
ERROR_MEMORY = 100  # intervals
DRIFT = 0.12  # log ratio to the same bins at the last fit: beyond it the whole machine has changed
DRIFT_EVIDENCE = 8  # intervals since the last fit, in bins that were known then
KNOWN = 4  # latencies in a known bin
PULL = 1e-4  # towards the start, relative to the evidence: the start decides only what the data leave open
KNEES = 16
AGE = 1000.0  # intervals per reporter after which a bin without new visits counts half
_SUBSETS = np.array([subset for subset in product((0.0, 1.0), repeat=3) if any(subset)])


class Interval(NamedTuple):
    """Mean load and latency per decode step between two reports."""

    running: float
    tokens: float  # resident
    latency: float  # seconds


class _Bin:
    """Latencies seen at about the same load. `known` is log(level / fitted) at the last fit, None before."""

    __slots__ = ("known", "last", "level", "ring", "running", "tokens")

    def __init__(self) -> None:
        self.ring: deque[tuple[int, float]] = deque(maxlen=RING)  # (observation, seconds)
        self.running = self.tokens = 0.0  # means
        self.last = 0
        self.level: float | None = None  # latency of the bin; None when it has to be computed again
        self.known: float | None = None

    def add(self, number: int, interval: Interval) -> None:
        self.ring.append((number, interval.latency))
        share = 1 / len(self.ring)
        self.running += (interval.running - self.running) * share
        self.tokens += (interval.tokens - self.tokens) * share
        self.last = number
        self.level = None

    def latency(self) -> float:
        if self.level is None:
            latencies = sorted([latency for _, latency in self.ring])
            middle = latencies[len(latencies) // 2]
            near = [latency for latency in latencies if middle / PAUSE <= latency <= middle * PAUSE]
            self.level = sum(near) / len(near)
        return self.level


class OnlineFit:
    """The cost model of one instance, or of several similar ones, learned from their reports."""

    def __init__(self, start: Coefficients = QWEN_7B_TP1) -> None:
        """`start` holds until there is evidence, then decides only what the evidence leaves open."""
        self.reporters = 1  # instances that report: the more, the more reports before the next fit
        self._start = self._decode = self._coefficients = start
        self._bins: dict[tuple[int, int], _Bin] = {}  # least recently visited first
        self._ratios: list[float] = []  # latency over that of the start, of the first ENOUGH intervals
        self._drifts: deque[tuple[int, float]] = deque(maxlen=DRIFT_EVIDENCE)  # (observation, log ratio)
        self._prefills: deque[tuple[float, float]] = deque(maxlen=2 * RING)  # (ratio, tokens)
        self._prefill = 1.0
        self._observations = self._since_fit = 0
        self._error = self._recent_error = 0.0

    @property
    def coefficients(self) -> Coefficients:
        """The current fit."""
        return self._coefficients

    @property
    def error(self) -> float | None:
        """Mean relative error of predicting each interval's latency before learning from it; None before one.

        Over about the last hundred intervals, including pauses of the process.
        """
        return self._error if self._observations else None

    @property
    def observations(self) -> int:
        """The number of intervals that could be used."""
        return self._observations

    def observe(self, before: InstanceStatus, after: InstanceStatus) -> Interval | None:
        """Learn from two successive reports of one process.

        Returns the interval between them; None if it has no decode steps or cannot be used.
        """
        self._observe_prefill(before, after)
        interval = interval_between(before, after)
        if interval is None:
            return None
        predicted = step_latency(self._coefficients, interval.running, interval.tokens)
        miss = abs(predicted - interval.latency) / interval.latency
        self._observations += 1
        self._error += (miss - self._error) / min(self._observations, ERROR_MEMORY)
        self._recent_error += (min(miss, 1.0) - self._recent_error) / 8
        self._absorb(interval, predicted)
        self._since_fit += 1
        if self._observations < ENOUGH:
            self._ratios.append(interval.latency / step_latency(self._start, *interval[:2]))
            self._decode = scaled(self._start, decode=median(self._ratios), prefill=1.0)
            self._combine()
        elif self._is_fit_due():
            self._refit()
        return interval

    def _absorb(self, interval: Interval, predicted: float) -> None:
        key = (
            int(RUNNING_BINS * log2(interval.running)),
            int(TOKENS_BINS * log2(1.0 + interval.tokens)),
        )
        bin = self._bins.pop(key, None)
        if bin is None:
            bin = _Bin()
            if len(self._bins) >= MAX_BINS:
                del self._bins[next(iter(self._bins))]
        self._bins[key] = bin
        if bin.known is not None:
            self._drifts.append((self._observations, log(interval.latency / predicted) - bin.known))
        bin.add(self._observations, interval)

    def _is_fit_due(self) -> bool:
        if self._observations == ENOUGH:
            return True
        is_surprised = self._recent_error > 2 * self._error + 0.05
        many = max(1.0, self.reporters / 4)
        usual = REFIT_EVERY if self._observations < LATER else REFIT_EVERY_LATER * many
        if self._since_fit < (DRIFT_EVIDENCE if is_surprised else usual):
            return False
        return self._since_fit >= REFIT_LATEST * many or not self._is_changing()

    def _is_changing(self) -> bool:
        """Whether the latest intervals lie on both sides of a drift, so that a fit would mix the two."""
        drifts = [drift for _, drift in self._drifts]
        if len(drifts) < DRIFT_EVIDENCE:
            return False
        middle = median(drifts)
        return sorted([abs(drift - middle) for drift in drifts])[-3] > max(DRIFT, 2 * self._error)

    def _refit(self) -> None:
        self._follow_drift()
        bins = list(self._bins.values())
        latencies = np.array([bin.latency() for bin in bins])
        running, tokens = np.array([(bin.running, bin.tokens) for bin in bins]).T
        age = AGE * max(1, self.reporters)
        weights = np.array([len(bin.ring) / (1.0 + (self._observations - bin.last) / age) for bin in bins])
        self._decode = _fit(self._start, np.stack((running, tokens, latencies)), weights)
        fitted = _latencies(self._decode, running, tokens)
        for bin, known in zip(bins, np.log(latencies / fitted).tolist(), strict=True):
            # few latencies may be pauses, so they say little about how this load differs from the fit
            bin.known = known if len(bin.ring) >= KNOWN else max(-DRIFT, min(DRIFT, known))
        self._combine()
        self._drifts.clear()
        self._since_fit = 0
        self._recent_error = min(self._recent_error, self._error)

    def _follow_drift(self) -> None:
        """If the same loads now take longer throughout, scale earlier latencies by that factor."""
        if len(self._drifts) < DRIFT_EVIDENCE:
            return
        drift = median([drift for _, drift in self._drifts])
        spread = median([abs(other - drift) for _, other in self._drifts])
        if abs(drift) < max(DRIFT, 2 * spread):
            return
        factor, since = exp(drift), self._drifts[0][0]
        for bin in self._bins.values():
            fresh = [entry for entry in bin.ring if entry[0] >= since]
            old = [(number, latency * factor) for number, latency in bin.ring if number < since]
            bin.ring = deque(fresh or old, maxlen=RING)
            bin.level = None

    def _observe_prefill(self, before: InstanceStatus, after: InstanceStatus) -> None:
        """Scale prefill instead of fitting it: reports have tokens and seconds, not the number of prompts."""
        tokens = after.prefill_tokens - before.prefill_tokens
        seconds = after.prefill_s - before.prefill_s
        if tokens <= 0 or seconds <= 0:
            return
        length = min(tokens, max(1.0, after.resident_tokens / max(1, after.running)))
        expected = prefill_s(self._start, length) * tokens / length
        if expected <= 0:
            return
        self._prefills.append((seconds / expected, tokens))
        if len(self._prefills) == 1:
            self._prefill = seconds / expected
            self._combine()

    def _combine(self) -> None:
        if self._prefills:
            self._prefill = _weighted_median(self._prefills)
        prefill = (value * self._prefill for value in self._start[5:])
        self._coefficients = Coefficients(*self._decode[:5], *prefill)


def interval_between(before: InstanceStatus, after: InstanceStatus) -> Interval | None:
    """Mean load and latency of a step between two reports; None if nothing was decoded or measured."""
    steps = after.decode_steps - before.decode_steps
    tokens = after.decode_tokens - before.decode_tokens
    seconds = after.decode_s - before.decode_s
    context = after.decode_context - before.decode_context
    if steps <= 0 or tokens < steps or seconds <= 0 or context < 0:
        return None
    latency = seconds / steps
    if not 1e-9 < latency < 1e9:
        return None
    # for engines that do not report the tokens that their steps read
    resident = context / steps if context else (before.resident_tokens + after.resident_tokens) / 2
    return Interval(tokens / steps, resident, latency)


def _weighted_median(pairs: deque[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in pairs) / 2
    for value, weight in sorted(pairs):
        half -= weight
        if half <= 0:
            return value
    raise AssertionError("there are no pairs")


def _latencies(coefficients: Coefficients, running: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    c = coefficients
    return c.attention_b + c.attention_k * tokens + np.maximum(c.floor, c.other_b + c.other_k * running)


def _fit(start: Coefficients, seen: np.ndarray, weights: np.ndarray) -> Coefficients:
    """The coefficients that best explain the rows running, tokens, latency of `seen` [3, bins].

    Least squares of relative errors; bins that remain far off lose weight in two more rounds.
    """
    running, tokens, latencies = seen
    scale = _middle(latencies / _latencies(start, running, tokens))
    knees = _knees(start, running)
    columns = np.ones((len(knees), 3, len(running)))  # for each knee: 1, max(knee, n), tokens
    columns[:, 1] = np.maximum(knees[:, None], running)
    columns[:, 2] = tokens
    centre = scale * np.array([start.other_b + start.attention_b, start.other_k, start.attention_k])
    relative = columns / latencies
    best, found = _solve(relative, weights, centre)
    for _ in range(2):
        miss = np.abs(found @ relative[best] - 1.0)
        trust = weights / (1.0 + (miss / max(0.05, 2 * _middle(miss))) ** 2)
        best, found = _solve(relative, trust, centre)
    other_b, other_k, attention_k = found.tolist()
    floor = other_b + other_k * float(knees[best])
    if floor <= 0:  # steps depend on tokens only; an empty instance must not be free
        floor = 1e-3 * float(latencies.min())
    return Coefficients(floor, other_b, other_k, 0.0, attention_k)


def _knees(start: Coefficients, running: np.ndarray) -> np.ndarray:
    """Candidate knees: none, that of the start, and some between the observed batch sizes."""
    knee = max(0.0, (start.floor - start.other_b) / start.other_k) if start.other_k else 0.0
    between = np.exp(np.linspace(log(running.min()), log(running.max()), KNEES))
    return np.concatenate(([knee, 0.0], between))


def _middle(values: np.ndarray) -> float:
    return float(np.sort(values)[len(values) // 2])  # np.median takes ten times as long


def _solve(relative: np.ndarray, trust: np.ndarray, centre: np.ndarray) -> tuple[int, np.ndarray]:
    """The best knee and its non-negative solution; `relative` [knees, 3, bins] times it should be 1.

    Three unknowns have seven subsets: the best feasible one is the non-negative least-squares solution.
    """
    trusted = relative * (trust / trust.sum())
    gram = trusted @ relative.transpose(0, 2, 1)
    size = np.sqrt(np.maximum(np.einsum("kjj->kj", gram), 1e-300))  # each unknown in units of its column
    gram = gram / (size[:, :, None] * size[:, None, :]) + PULL * np.eye(3)
    pulled = PULL * centre * size
    aim = trusted.sum(2) / size + pulled
    subsets = _SUBSETS[:, None, :]
    masked = gram * (subsets[..., :, None] * subsets[..., None, :]) + (1.0 - subsets)[..., None] * np.eye(3)
    solved = cast("np.ndarray", np.linalg.solve(masked, (aim * subsets)[..., None]))
    solutions = solved[..., 0]
    gain = np.where((solutions >= 0).all(2), (solutions * aim).sum(2), -np.inf)
    loss = (pulled**2).sum(1) / PULL - gain
    subset, knee = np.unravel_index(int(np.argmin(loss)), loss.shape)
    return int(knee), solutions[subset, knee] / size[knee]
