"""One Train message as arrays.

Invariant: what this module returns is consistent: every frame has just the size that the items say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protocol.errors import RemoteError
from protocol.messages import Train


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories of one train step; the flat arrays run over all response tokens, without padding."""

    tokens: list[np.ndarray]  # int64, prompt then response, one array per trajectory
    prompt_lengths: list[int]
    response_starts: list[int]  # where each trajectory's response begins in the flat arrays
    groups: list[int]
    rollout_logprobs: np.ndarray  # float32, flat
    advantages: np.ndarray  # float32, flat: the trajectory's advantage at each of its response tokens

    @property
    def lengths(self) -> list[int]:
        """Tokens of each trajectory, prompt and response."""
        return [len(tokens) for tokens in self.tokens]

    @property
    def response_lengths(self) -> list[int]:
        """Response tokens of each trajectory."""
        return [len(tokens) - prompt for tokens, prompt in zip(self.tokens, self.prompt_lengths, strict=True)]


def read_batch(train: Train, frames: Sequence[bytes]) -> Batch:
    """The batch in a Train message. Raises: RemoteError if frames and items contradict each other."""
    prompt_lengths = [item.prompt_tokens for item in train.items]
    response_lengths = [item.response_tokens for item in train.items]
    expected = [4 * sum(prompt_lengths), 4 * sum(response_lengths), 4 * sum(response_lengths)]
    if [len(frame) for frame in frames] != expected or not all(prompt_lengths) or not train.items:
        raise RemoteError(
            f"Train for version {train.train_version} has {len(train.items)} items and frames of "
            f"{[len(frame) for frame in frames]} bytes; expected items, each with a prompt, and {expected}."
        )
    prompts = np.split(np.frombuffer(frames[0], dtype="<i4"), np.cumsum(prompt_lengths)[:-1])
    responses = np.split(np.frombuffer(frames[1], dtype="<i4"), np.cumsum(response_lengths)[:-1])
    advantages = np.array([item.advantage for item in train.items], dtype=np.float32)
    return Batch(
        tokens=[np.concatenate(pair).astype(np.int64) for pair in zip(prompts, responses, strict=True)],
        prompt_lengths=prompt_lengths,
        response_starts=[0, *np.cumsum(response_lengths)[:-1].tolist()],
        groups=[item.group for item in train.items],
        rollout_logprobs=np.frombuffer(frames[2], dtype="<f4").astype(np.float32),
        advantages=np.repeat(advantages, response_lengths),
    )
