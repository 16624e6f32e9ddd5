"""Reads the batch of a Train or TrainAhead message into arrays.

Invariants: a returned batch is consistent: every frame has exactly the size that the items state; tokens that
an environment has given are context: they are in `tokens` and in no other array.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.errors import RemoteError
from protocol.kept_sets import word_counts
from protocol.messages import Train, TrainAhead, TrainItem

ROUNDING = 1e-6  # advantages that are no further apart are equal, as for the filter of groups


@dataclass(frozen=True, slots=True)
class BatchKept:
    """The kept sets of a batch: the tokens that sampling could choose from (protocol/kept_sets.py)."""

    codes: np.ndarray  # int32, flat
    words: list[np.ndarray]  # int32, one array per trajectory


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Trajectories of one train step; the flat arrays run over all sampled tokens, without padding."""

    tokens: list[np.ndarray]  # int64: all tokens of each trajectory, with its prompt or given tokens
    positions: list[np.ndarray]  # int64: places of its sampled tokens, ascending; the first is at least 1
    groups: list[int]
    episodes: list[int]  # index from 0, the unit of means and splits; in a single-turn run one per trajectory
    is_truncated: list[bool]  # the response was cut off at the token limit
    policy_versions: np.ndarray  # int64, flat: the version that sampled each token
    rollout_logprobs: np.ndarray  # float32, flat
    outcomes: np.ndarray  # float32, one per trajectory: TrainItem.outcome
    advantages: np.ndarray  # float32, flat: the outcome of the trajectory, or of the token's segment
    kept: BatchKept | None = None  # None if sampling has cut nothing off
    is_by_turn: bool = False  # whether turns have advantages of their own

    @property
    def lengths(self) -> list[int]:
        """Tokens of each trajectory, prompt and response."""
        return [len(tokens) for tokens in self.tokens]

    @property
    def prompt_lengths(self) -> list[int]:
        """Tokens of each trajectory before the first sampled one."""
        pairs = zip(self.tokens, self.positions, strict=True)
        return [int(positions[0]) if len(positions) else len(tokens) for tokens, positions in pairs]

    @property
    def response_lengths(self) -> list[int]:
        """Sampled tokens of each trajectory."""
        return [len(positions) for positions in self.positions]

    @property
    def response_starts(self) -> list[int]:
        """Where each trajectory's sampled tokens begin in the flat arrays."""
        return [0, *np.cumsum(self.response_lengths)[:-1].tolist()]

    def turn_metrics(self) -> dict[str, float]:
        """The share of groups whose turns all have one advantage, among groups of several episodes.

        Empty if turns have no advantages of their own, or no group has several episodes.
        """
        if not self.is_by_turn:
            return {}
        advantages: dict[int, list[np.ndarray]] = {}
        episodes: dict[int, set[int]] = {}
        of_each = np.split(self.advantages, self.response_starts[1:])
        for group, episode, own in zip(self.groups, self.episodes, of_each, strict=True):
            advantages.setdefault(group, []).append(own)
            episodes.setdefault(group, set()).add(episode)
        compared = [np.concatenate(advantages[group]) for group, some in episodes.items() if len(some) > 1]
        equal = [not len(values) or bool(np.ptp(values) <= ROUNDING) for values in compared]
        return {"groups/equal_advantages": sum(equal) / len(equal)} if equal else {}


def read_batch(train: Train | TrainAhead, frames: Sequence[bytes]) -> TrainBatch:
    """The batch of a message, without the trajectories that were sent ahead of it.

    Raises: RemoteError if frames and items contradict each other.
    """
    items = train.rest
    prompt_lengths = [item.prompt_tokens for item in items]
    response_lengths = [item.response_tokens for item in items]
    sampled_lengths = [item.sampled_tokens for item in items]
    expected = [4 * sum(lengths) for lengths in (prompt_lengths, response_lengths, sampled_lengths)]
    frames, kept = frames[:3], frames[3:]
    begins = [item.prompt_tokens or (item.segments and item.segments[0].is_given) for item in items]
    if [len(frame) for frame in frames] != expected or not all(begins) or not items:
        raise RemoteError(
            f"{type(train).__name__} for version {train.train_version} has {len(items)} items and frames of "
            f"{[len(frame) for frame in frames]} bytes; expected items, each with a prompt, and {expected}."
        )
    prompts = np.split(np.frombuffer(frames[0], dtype="<i4"), np.cumsum(prompt_lengths)[:-1])
    responses = np.split(np.frombuffer(frames[1], dtype="<i4"), np.cumsum(response_lengths)[:-1])
    outcomes = np.array([item.outcome for item in items], dtype=np.float32)
    segments = [(s.policy_version, s.count) for item in items for s in item.segments if not s.is_given]
    return TrainBatch(
        tokens=[np.concatenate(pair).astype(np.int64) for pair in zip(prompts, responses, strict=True)],
        positions=[_sampled_positions(item) for item in items],
        groups=[item.group for item in items],
        episodes=_episodes(items),
        is_truncated=[item.ending == "length" for item in items],
        policy_versions=np.repeat(*np.array(segments, dtype=np.int64).reshape(-1, 2).T),
        rollout_logprobs=np.frombuffer(frames[2], dtype="<f4").astype(np.float32),
        outcomes=outcomes,
        advantages=np.repeat(outcomes, sampled_lengths) if not _by_turn(items) else _advantages(items),
        kept=_read_kept(train, kept, sampled_lengths),
        is_by_turn=_by_turn(items),
    )


def _read_kept(
    train: Train | TrainAhead, frames: Sequence[bytes], sampled_lengths: Sequence[int]
) -> BatchKept | None:
    """The kept sets, read from the frames after the third. Raises: RemoteError."""
    sizes = [len(frame) for frame in frames]
    expected = [4 * sum(sampled_lengths)] if train.is_cut else []
    if train.is_cut and sizes[:1] == expected:
        codes = np.frombuffer(frames[0], dtype="<i4")
        totals = np.concatenate([[0], np.cumsum(word_counts(codes))])
        words = np.diff(totals[np.cumsum([0, *sampled_lengths])])
        expected += [4 * size for size in words.tolist()]
        if sizes == expected:
            return BatchKept(codes, [np.frombuffer(frame, dtype="<i4") for frame in frames[1:]])
    if sizes != expected:
        raise RemoteError(
            f"{type(train).__name__} for version {train.train_version} has kept sets in frames of "
            f"{sizes[:9]} bytes; expected {expected[:9]}."
        )
    return None


def _sampled_positions(item: TrainItem) -> np.ndarray:
    place, runs = item.prompt_tokens, [np.zeros(0, dtype=np.int64)]
    for segment in item.segments:
        if not segment.is_given:
            runs.append(np.arange(place, place + segment.count))
        place += segment.count
    return np.concatenate(runs)


def _episodes(items: Sequence[TrainItem]) -> list[int]:
    """The episode of each item, from 0; an item with a prompt is an episode of its own."""
    names = [
        (item.group, item.episode) if item.segments and item.segments[0].is_given else (item.group, -1, place)
        for place, item in enumerate(items)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [numbers[name] for name in names]


def _by_turn(items: Sequence[TrainItem]) -> bool:
    return any(item.outcomes for item in items)


def _advantages(items: Sequence[TrainItem]) -> np.ndarray:
    """For every sampled token the outcome of its segment, or of its trajectory if segments have none."""
    runs = [
        (outcome, segment.count)
        for item in items
        for segment, outcome in zip(
            item.segments, item.outcomes or (item.outcome,) * len(item.segments), strict=True
        )
        if not segment.is_given
    ]
    values, counts = zip(*runs, strict=True)
    return np.repeat(np.array(values, dtype=np.float32), counts)
