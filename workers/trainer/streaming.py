"""Collects the parts of a batch that are trained before the batch is complete.

Invariant: nothing is divided before the whole batch is known. Until then token weights, losses and gradients
are sums, so the result does not depend on which groups came together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from protocol.errors import RemoteError
from protocol.messages import Train, TrainAhead, TrainItem
from protocol.settings import TrainerSettings
from workers.trainer import losses
from workers.trainer.batch import TrainBatch, read_batch
from workers.trainer.token_batch import TokenBatch, count_episodes

SHARED_FRAMES = 4  # of `train_pieces`, for all trajectories; the frames after them are of one trajectory each


@dataclass(slots=True)
class StreamedGroups:
    """The parts of one batch so far. Their gradients are in the model."""

    items: list[TrainItem] = field(default_factory=list)
    frames: list[Sequence[bytes]] = field(default_factory=list)
    flats: list[TokenBatch] = field(default_factory=list)
    totals: torch.Tensor | None = None  # this rank's input of the optimizer step
    divisor: int = 0  # of the loss
    seconds: float = 0.0  # spent before the batch was complete

    def add(
        self, part: Train | TrainAhead, frames: Sequence[bytes], *, batch: TrainBatch, flat: TokenBatch,
        options: TrainerSettings,
    ) -> None:  # fmt: skip
        """Add a part that is about to be trained, and undo the division of its token weights."""
        counted = count_episodes(batch, range(len(batch.tokens)))
        divisor = losses.divisor(counted.lengths_E, options.loss_aggregation, groups=counted.groups_E)
        flat.token_weights *= divisor
        self.divisor += divisor
        self.items += part.rest
        self.frames.append(frames)
        self.flats.append(flat)

    def check(self, train: Train) -> None:
        """Raises: RemoteError if this is not the batch that the parts belong to."""
        if list(train.items[: train.ahead]) != self.items:
            raise RemoteError(
                f"Train for version {train.train_version} counts on {train.ahead} trajectories that were "
                f"sent ahead; {len(self.items)} were, or others. Expected the same, in the same order. "
                "Install the same release on both sides."
            )

    def whole(self, train: Train) -> tuple[TrainBatch, TokenBatch]:
        """The complete batch, with its weights divided.

        `sequences` and `groups` of the TokenBatch count from 0 in each part.
        """
        columns_of = [frames[:SHARED_FRAMES] for frames in self.frames]
        joined = [b"".join(parts) for parts in zip(*columns_of, strict=True)]
        joined += [frame for frames in self.frames for frame in frames[SHARED_FRAMES:]]
        columns = {f.name: [getattr(flat, f.name) for flat in self.flats] for f in fields(TokenBatch)}
        every: dict[str, Any] = {n: None if c[0] is None else torch.cat(c) for n, c in columns.items()}
        flat = TokenBatch(**every)
        flat.token_weights /= max(1, self.divisor)
        return read_batch(replace(train, ahead=0), joined), flat
