"""Parts of a model's tensor in its files: the whole tensor, or rows of one expert.

Invariants: nothing is copied; if a tensor is spread over ranks by experts, a part lies on one rank.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor, Shard


class TensorPart(NamedTuple):
    """The place of a file's tensor in the model."""

    own: str
    """Name of the model's tensor."""
    expert: int | None = None
    """None for all of the model's tensor."""
    start: int = 0
    """First row within the expert's."""
    count: int = 0
    """Number of rows."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a whole tensor, without a copy."""
        return tensor if self.expert is None else tensor[self.expert].narrow(0, self.start, self.count)

    def shape(self, own: Collection[int]) -> tuple[int, ...]:
        """The part's shape, from that of the model's tensor."""
        return tuple(own) if self.expert is None else (self.count, *tuple(own)[2:])


class SpreadPart(NamedTuple):
    """Rows of one expert in a tensor of which this rank may hold a share."""

    whole: torch.Tensor
    part: TensorPart

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows."""
        return self.part.shape(self.whole.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tensor."""
        return self.whole.dtype

    @property
    def owner(self) -> int:
        """The rank that holds the rows."""
        return (self.part.expert or 0) // self._each if isinstance(self.whole, DTensor) else 0

    def is_floating_point(self) -> bool:
        """Whether the tensor is of a floating-point dtype."""
        return self.whole.is_floating_point()

    def local(self) -> torch.Tensor | None:
        """The rows; None if another rank holds them."""
        if not isinstance(self.whole, DTensor):
            return self.part.of(self.whole)
        place = self.whole.device_mesh.get_coordinate()
        assert place is not None
        assert self.part.expert is not None
        if self.owner != (rank := place[0]):
            return None
        expert = self.part.expert - rank * self._each
        return self.part._replace(expert=expert).of(self.whole.to_local())

    @property
    def _each(self) -> int:
        """Experts of a rank, by torch.chunk's rule."""
        assert isinstance(self.whole, DTensor)
        assert self.whole.placements == (Shard(0),), "FSDP2 shards rows"
        return -(-self.whole.shape[0] // self.whole.device_mesh.size())
