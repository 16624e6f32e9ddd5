"""Remembers the response lengths of each prompt, and predicts the next ones from them.

Invariants:
- Memory is bounded: MOST_PROMPTS prompts, 24 bytes each. When it is full, a new prompt replaces the prompt of
  its set that was put longest ago.
- Only complete groups are learned from, so long and short responses count alike, except where some are
  dropped: of a group with spare responses only the first to end are seen, and of a group that grew too old,
  or was itself spare, none.
- Predictions follow from completed groups alone; running responses are not seen.

A prompt is identified by a number (0 for none). The prediction for a remembered prompt is a linear regression
of new mean log lengths on remembered ones, learned during the run: its slope is the share of a prompt's own
length that comes back, its offset follows the policy as its responses grow. The prediction for other prompts
is the mean of their source.
"""

from collections.abc import Sequence
from math import log1p
from typing import NamedTuple

import numpy as np

MOST_PROMPTS = 1 << 16  # 1.5 MiB, in each snapshot
WAYS = 8  # prompts of a set
FIRST_SETS = 8
REMEMBERED = 32.0  # most responses that a prompt's mean counts as, so that a newer epoch counts more
GROUPS = 4096  # a group weighs 1/e in regression and means so many groups later
SLOPE, WEIGHT = 0.5, 8.0  # before there is evidence, and the groups that this counts for


class Expectation(NamedTuple):
    """The predicted length of the responses to one prompt."""

    log: float  # mean of log(1 + tokens)
    seen: float  # earlier responses that it is based on; 0 if the prompt is not remembered


class PromptLengths:
    """Mean log lengths by prompt, and a regression that predicts the next ones."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        """`most`: the number of remembered prompts, a power of 2."""
        self._most_sets = max(1, most // WAYS)
        self._table = PromptTable(min(FIRST_SETS, self._most_sets))
        self._usual: dict[int, tuple[float, float]] = {}  # source -> (weight, mean log)
        # decayed sums over groups of remembered prompts: of 1, x, y, x * x, x * y
        self._sums = [0.0] * 5

    def __len__(self) -> int:
        return self._table.count

    def observe(self, prompt: int, source: int, lengths: Sequence[int]) -> None:
        """Learn from a complete group with these response lengths."""
        if not lengths:
            return
        came, count = sum(map(log1p, lengths)) / len(lengths), float(len(lengths))
        weight, mean = self._usual.get(source, (0.0, 0.0))
        weight = min(weight + 1.0, GROUPS)
        self._usual[source] = weight, mean + (came - mean) / weight
        if not prompt:
            return
        before, seen = self._table.find(prompt)
        if seen:
            keep = 1 - 1 / GROUPS
            new = (1.0, before, came, before * before, before * came)
            self._sums = [keep * old + one for old, one in zip(self._sums, new, strict=True)]
            came = (seen * before + count * came) / (seen + count)
            count += seen
        elif 2 * self._table.count >= self._table.room and self._table.sets < self._most_sets:
            self._table = self._table.doubled()
        self._table.put(prompt, came, min(count, REMEMBERED))

    def expect(self, prompts: Sequence[tuple[int, int]]) -> list[Expectation]:
        """The predictions for (prompt, source) pairs."""
        offset, slope = self._line()
        logs, seen = self._table.find_all([prompt for prompt, _ in prompts])
        usual = self._mean()
        found: list[Expectation] = []
        for (_, source), log, count in zip(prompts, logs, seen, strict=True):
            if count:
                found.append(Expectation(offset + slope * log, count))
            else:
                found.append(Expectation(self._usual.get(source, (0.0, usual))[1], 0.0))
        return found

    def _mean(self) -> float:
        """Mean log length over all sources; 0 before the first group."""
        total = sum(weight for weight, _ in self._usual.values())
        return sum(weight * mean for weight, mean in self._usual.values()) / total if total else 0.0

    def _line(self) -> tuple[float, float]:
        """Offset and slope of the regression of new on remembered log lengths."""
        count, sum_x, sum_y, sum_xx, sum_xy = self._sums
        if count < 1:
            mean = self._mean()
            return mean * (1 - SLOPE), SLOPE
        mean_x, mean_y = sum_x / count, sum_y / count
        variance = max(0.0, sum_xx / count - mean_x * mean_x)
        covariance = sum_xy / count - mean_x * mean_y
        slope = SLOPE
        if variance > 1e-9:
            slope = (count * covariance + WEIGHT * SLOPE * variance) / ((count + WEIGHT) * variance)
        slope = min(1.0, max(0.0, slope))
        return mean_y - slope * mean_x, slope


class PromptTable:
    """A hash table of sets of WAYS places, in arrays, so that a snapshot of it is a copy of few bytes."""

    def __init__(self, sets: int) -> None:
        self.sets, self.count = sets, 0
        self._keys = np.zeros((sets, WAYS), np.int64)
        self._logs, self._seen = np.zeros((sets, WAYS), np.float32), np.zeros((sets, WAYS), np.float32)
        self._met = np.zeros((sets, WAYS), np.int64)  # by a count of puts
        self._puts = 0

    @property
    def room(self) -> int:
        """The number of places."""
        return self.sets * WAYS

    def find(self, prompt: int) -> tuple[float, float]:
        """The mean log length of a prompt and its count of responses; (0, 0) if it is not stored."""
        row = prompt % self.sets
        keys = self._keys[row].tolist()
        if prompt not in keys:
            return 0.0, 0.0
        place = keys.index(prompt)
        return float(self._logs[row, place]), float(self._seen[row, place])

    def find_all(self, prompts: Sequence[int]) -> tuple[list[float], list[float]]:
        """Like `find`, for several prompts."""
        keys = np.array(prompts, np.int64)
        rows = keys % self.sets
        hits = self._keys[rows] == keys[:, None]  # an empty place, of key 0, holds zeros
        places, there = hits.argmax(axis=1), hits.any(axis=1)
        logs, seen = (np.where(there, column[rows, places], 0.0) for column in (self._logs, self._seen))
        return logs.tolist(), seen.tolist()

    def put(self, prompt: int, log: float, seen: float) -> None:
        """Store a prompt; in a full set it replaces the one that was put longest ago."""
        row = prompt % self.sets
        keys = self._keys[row].tolist()
        self._puts += 1
        if prompt in keys:
            place = keys.index(prompt)
        elif 0 in keys:
            place = keys.index(0)
            self.count += 1
        else:
            place = int(self._met[row].argmin())
        self._keys[row, place], self._met[row, place] = prompt, self._puts
        self._logs[row, place], self._seen[row, place] = log, seen

    def doubled(self) -> "PromptTable":
        """The same prompts in a table of twice as many sets."""
        larger = PromptTable(2 * self.sets)
        for row, place in np.argwhere(self._keys).tolist():
            prompt, met = int(self._keys[row, place]), int(self._met[row, place])
            larger.put(prompt, float(self._logs[row, place]), float(self._seen[row, place]))
            new = prompt % larger.sets
            larger._met[new][larger._keys[new] == prompt] = met
        larger._puts = self._puts
        return larger
