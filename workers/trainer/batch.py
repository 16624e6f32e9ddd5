"""One Train or TrainAhead message as arrays.

Invariant: what this module returns is consistent: every frame has just the size that the items say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.errors import RemoteError
from protocol.kept_sets import word_counts
from protocol.messages import Train, TrainAhead


@dataclass(frozen=True, slots=True)
class BatchKept:
    """Kept sets of a batch (protocol/kept_sets.py)."""

    codes: np.ndarray  # int32, flat
    words: list[np.ndarray]  # int32, of each trajectory


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Trajectories of one train step; the flat arrays run over all response tokens, without padding."""

    tokens: list[np.ndarray]  # int64, prompt then response, one array per trajectory
    prompt_lengths: list[int]
    response_starts: list[int]  # where each trajectory's response begins in the flat arrays
    groups: list[int]
    is_truncated: list[bool]  # the response was cut off at the token limit
    policy_versions: np.ndarray  # int64, flat: the version that sampled each response token
    rollout_logprobs: np.ndarray  # float32, flat
    outcomes: np.ndarray  # float32, one per trajectory: TrainItem.outcome
    advantages: np.ndarray  # float32, flat: the same at each of its response tokens
    kept: BatchKept | None = None  # where sampling cut

    @property
    def lengths(self) -> list[int]:
        """Tokens of each trajectory, prompt and response."""
        return [len(tokens) for tokens in self.tokens]

    @property
    def response_lengths(self) -> list[int]:
        """Response tokens of each trajectory."""
        return [len(tokens) - prompt for tokens, prompt in zip(self.tokens, self.prompt_lengths, strict=True)]


def read_batch(train: Train | TrainAhead, frames: Sequence[bytes]) -> TrainBatch:
    """The batch in a message, without what was sent ahead of it.

    Raises: RemoteError if frames and items contradict each other.
    """
    items = train.rest
    prompt_lengths = [item.prompt_tokens for item in items]
    response_lengths = [item.response_tokens for item in items]
    expected = [4 * sum(prompt_lengths), 4 * sum(response_lengths), 4 * sum(response_lengths)]
    frames, kept = frames[:3], frames[3:]
    if [len(frame) for frame in frames] != expected or not all(prompt_lengths) or not items:
        raise RemoteError(
            f"{type(train).__name__} for version {train.train_version} has {len(items)} items and frames of "
            f"{[len(frame) for frame in frames]} bytes; expected items, each with a prompt, and {expected}."
        )
    prompts = np.split(np.frombuffer(frames[0], dtype="<i4"), np.cumsum(prompt_lengths)[:-1])
    responses = np.split(np.frombuffer(frames[1], dtype="<i4"), np.cumsum(response_lengths)[:-1])
    outcomes = np.array([item.outcome for item in items], dtype=np.float32)
    segments = [(s.policy_version, s.count) for item in items for s in item.segments]
    return TrainBatch(
        tokens=[np.concatenate(pair).astype(np.int64) for pair in zip(prompts, responses, strict=True)],
        prompt_lengths=prompt_lengths,
        response_starts=[0, *np.cumsum(response_lengths)[:-1].tolist()],
        groups=[item.group for item in items],
        is_truncated=[item.ending == "length" for item in items],
        policy_versions=np.repeat(*np.array(segments, dtype=np.int64).reshape(-1, 2).T),
        rollout_logprobs=np.frombuffer(frames[2], dtype="<f4").astype(np.float32),
        outcomes=outcomes,
        advantages=np.repeat(outcomes, response_lengths),
        kept=_read_kept(train, kept, response_lengths),
    )


def _read_kept(
    train: Train | TrainAhead, frames: Sequence[bytes], response_lengths: Sequence[int]
) -> BatchKept | None:
    """The kept sets out of the frames behind the third. Raises: RemoteError."""
    sizes = [len(frame) for frame in frames]
    expected = [4 * sum(response_lengths)] if train.is_cut else []
    if train.is_cut and sizes[:1] == expected:
        codes = np.frombuffer(frames[0], dtype="<i4")
        totals = np.concatenate([[0], np.cumsum(word_counts(codes))])
        words = np.diff(totals[np.cumsum([0, *response_lengths])])
        expected += [4 * size for size in words.tolist()]
        if sizes == expected:
            return BatchKept(codes, [np.frombuffer(frame, dtype="<i4") for frame in frames[1:]])
    if sizes != expected:
        raise RemoteError(
            f"{type(train).__name__} for version {train.train_version} has kept sets in frames of "
            f"{sizes[:9]} bytes; expected {expected[:9]}."
        )
    return None
