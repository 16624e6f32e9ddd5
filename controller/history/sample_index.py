"""A line of numbers for each response of the kept samples, so that they can be filtered and sorted.

Invariants: a sample is read once, and never decoded to text; samples that the run has deleted are dropped at
the next look; a line takes 78 bytes, however long its response is; a damaged sample is reported, and the
others stay readable.
"""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import isfinite, nan
from typing import Any

import numpy as np

from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.durability.sample_records import KeptSample, advantages_of, mean_advantage
from protocol.errors import RunError
from protocol.messages import GIVEN

Key = tuple[int, int]
"""Step and group."""
IsLate = Callable[[], bool]
LINE = np.dtype([
    ("step", "<i8"), ("group", "<i8"), ("member", "<i8"), ("reward", "<f8"),
    ("advantage", "<f8"),  # nan for held-out prompts, which are not trained
    ("length", "<i8"),  # all tokens behind the prompt, given ones too
    ("drift", "<f4"),  # mean absolute drift of its tokens; nan if the trainer did not report it
    ("repeats", "<f4"),  # share of its runs of REPEATED tokens that occurred before in it
    ("ages", "<u8"),  # bit k: a token is k versions old
    ("source", "<i4"),  # number in `sources`
    ("prompt", "<u8"),  # digest, equal for the same prompt in another epoch
    ("is_cut", "?"), ("is_equal", "?"),
])  # fmt: skip
OLDEST = 63  # larger ages count as this one
REPEATED = 4
EQUAL = 1e-6  # largest difference of rewards that count as equal
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of the hash of a run of tokens


class SampleIndex:
    """The lines of one run's samples, oldest first."""

    def __init__(self) -> None:
        self._lines: dict[Key, np.ndarray] = {}
        self._table: np.ndarray | None = None
        self.damaged: dict[Key, str] = {}
        """By key, what is wrong with samples that cannot be read."""
        self.sources: dict[str, int] = {}
        """Numbers of the data sources; "" stands for rows without a source."""

    def follow(self, recording: Recording, is_late: IsLate) -> int:
        """Read new samples, the newest first, until `is_late()`; returns how many are left to read.

        Each call reads at least one. Raises: RunError.
        """
        kept = dict.fromkeys(recording.sample_keys())
        for key in [key for key in (*self._lines, *self.damaged) if key not in kept]:
            self._forget(key)
        missing = [key for key in reversed(kept) if key not in self._lines and key not in self.damaged]
        for place, key in enumerate(missing):
            self._take(recording, key)
            if is_late():
                return len(missing) - place - 1
        return 0

    @property
    def table(self) -> np.ndarray:
        """All lines read so far, the oldest first. Callers must not change it."""
        if self._table is None:
            lines = [self._lines[key] for key in sorted(self._lines)]
            self._table = np.concatenate(lines) if lines else np.empty(0, LINE)
        return self._table

    def _take(self, recording: Recording, key: Key) -> None:
        try:
            sample = recording.sample(*key)
        except RunError as error:
            self.damaged[key] = str(error)
            return
        if sample is not None:
            self._lines[key] = lines_of_numbers(sample, self.sources)
            self._table = None

    def _forget(self, key: Key) -> None:
        self.damaged.pop(key, None)
        if self._lines.pop(key, None) is not None:
            self._table = None


def lines_of_numbers(sample: KeptSample, sources: dict[str, int]) -> np.ndarray:
    """One LINE for each response; a new source gets the next number of `sources`."""
    items: list[dict[str, Any]] = sample.facts["items"]
    tokens = np.frombuffer(sample.tokens, "<i4")
    drifts = _drifts(sample)
    source = sources.setdefault(source_of(sample.row), len(sources))
    prompt, is_equal = digest_of(sample), _are_equal(items)
    lines = np.empty(len(items), LINE)
    begin = drifted = 0
    for place, item in enumerate(items):
        segments = [(version, count) for _, version, count in item["segments"]]
        end = begin + sum(count for _, count in segments)
        sampled = sum(count for version, count in segments if version != GIVEN)
        drift = drifts[drifted : drifted + sampled]
        lines[place] = (
            sample.step, sample.group, item["member"], number(item["reward"]),
            nan if sample.group >= FIRST_EVALUATION_GROUP else number(mean_advantage(item)),
            end - begin,
            np.abs(drift).mean() if len(drift) else nan,
            repeats(tokens[begin:end]),
            _ages(sample.step, segments), source, prompt, item["ending"] == "length", is_equal,
        )  # fmt: skip
        begin, drifted = end, drifted + sampled
    return lines


def number(value: float) -> float:
    """The value, or nan if it is not finite."""
    return value if isfinite(value) else nan


def source_of(row: bytes) -> str:
    """The data source that a row names; "" if it names none."""
    found: Any = json.loads(row)
    name = found.get("source", "") if isinstance(found, Mapping) else ""
    return name if isinstance(name, str) else ""


def digest_of(sample: KeptSample) -> int:
    """The digest of a sample's prompt, or of its row if each episode has its own prompt."""
    return int.from_bytes(blake2b(sample.prompt or sample.row, digest_size=8).digest(), "little")


def repeats(tokens: np.ndarray) -> float:
    """The share of runs of REPEATED tokens that repeat an earlier run of the response."""
    count = len(tokens) - REPEATED + 1
    if count < 1:
        return 0.0
    mixed = np.zeros(count, np.uint64)
    for place in range(REPEATED):
        mixed = mixed * FACTOR + tokens[place : place + count].astype(np.uint64)
    return 1 - len(np.unique(mixed)) / count


def _drifts(sample: KeptSample) -> np.ndarray:
    """Drifts of all sampled tokens, in nats; empty if the trainer did not report them."""
    trained, sampled = np.frombuffer(sample.trained, "<f4"), np.frombuffer(sample.logprobs, "<f4")
    return trained - sampled if len(trained) == len(sampled) else trained[:0]


def _ages(step: int, segments: list[tuple[int, int]]) -> int:
    """A bit set of the ages of tokens: bit k means k versions old when trained."""
    found = 0
    for version, count in segments:
        if version != GIVEN and count:
            found |= 1 << min(max(step - 1 - version, 0), OLDEST)
    return found


def _are_equal(items: list[dict[str, Any]]) -> bool:
    """Whether the group had no signal: equal rewards, or equal advantages if turns have their own."""
    compared = [item["reward"] for item in items]
    if any(item.get("outcomes") for item in items):
        compared = [advantage for item in items for advantage in advantages_of(item)] or [0.0]
    return len(items) > 1 and max(compared) - min(compared) <= EQUAL
