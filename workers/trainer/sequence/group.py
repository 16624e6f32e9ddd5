"""The ranks that share packed rows, and their exchange of heads and tokens.

Invariants: a group consists of neighbouring ranks; a row's tokens lie on them in order, equally many on each;
only attention looks beyond a rank's tokens, and for it the ranks exchange some tokens of all heads for all
tokens of some heads, and back (DeepSpeed Ulysses, arXiv 2309.14509). Every exchange has its gradient.

Shapes: T tokens of a row, t of them on one rank, H heads, h of them on one rank, D size of a head, N sampled
tokens of a row, n of them on one rank.
"""

from typing import Any, cast

import torch
import torch.distributed as dist
from transformers import PretrainedConfig

from protocol.errors import ConfigError
from workers.trainer.ranks import Ranks


class SequenceGroup:
    """This rank's place in the group of ranks that share its rows."""

    def __init__(self, ranks: Ranks, size: int) -> None:
        """Join the ranks beside this one; collective over all ranks.

        Raises: ConfigError if `size` does not divide the ranks.
        """
        if ranks.size % size:
            raise ConfigError(
                f"`trainer.sequence_ranks` is {size}, which does not divide the {ranks.size} trainer ranks. "
                "Expected a divisor: the ranks are split into groups that share rows."
            )
        self.size = size
        self.number, self.rank = divmod(ranks.rank, size)
        groups = [dist.new_group([*range(begin, begin + size)]) for begin in range(0, ranks.size, size)]
        self._group: Any = groups[self.number]

    def check_heads(self, config: PretrainedConfig) -> None:
        """Raises: ConfigError if the heads of this model cannot be spread over the group."""
        text = config.get_text_config()
        heads = {
            name: count
            for name in ("num_attention_heads", "num_key_value_heads")
            if (count := getattr(text, name, None)) and count % self.size
        }
        if heads:
            told = " and ".join(f"{name} {count}" for name, count in heads.items())
            raise ConfigError(
                f"`trainer.sequence_ranks` is {self.size}, which does not divide {told} of the model. "
                "Expected a divisor of both: each rank computes the attention of some heads."
            )

    def part(self, length: int) -> tuple[int, int]:
        """The first token of this rank in a row, and the tokens per rank; the last rank's may be padding."""
        each = -(-length // self.size)
        return self.rank * each, each

    def to_heads(self, states_1HtD: torch.Tensor) -> torch.Tensor:
        """Exchange this rank's tokens of all heads for all tokens of its heads: [1, h, T, D]."""
        return cast("torch.Tensor", _Exchange.apply(states_1HtD, self._group, self.size, True))

    def to_tokens(self, states_1hTD: torch.Tensor) -> torch.Tensor:
        """The inverse of `to_heads`: this rank's tokens of all heads, [1, H, t, D]."""
        return cast("torch.Tensor", _Exchange.apply(states_1hTD, self._group, self.size, False))

    def heads(self, values_H: torch.Tensor) -> torch.Tensor:
        """The values of this rank's heads."""
        return values_H.chunk(self.size)[self.rank]

    def whole(self, values_n: torch.Tensor, place: slice, count: int) -> torch.Tensor:
        """The values of all ranks [count]; this rank contributes those at `place`.

        Every rank computes the same loss from the result, so a value's gradient goes only to the rank that
        gave it.
        """
        return cast("torch.Tensor", _Whole.apply(values_n, self._group, place, count))


def group_of(ranks: Ranks, size: int) -> SequenceGroup | None:
    """The group of this rank; None if no rows are shared. Collective. Raises: ConfigError."""
    return SequenceGroup(ranks, size) if size > 1 else None


class _Exchange(torch.autograd.Function):
    """All-to-all over heads and tokens; its gradient is the exchange the other way round."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, group: Any, size: int, is_to_heads: bool) -> torch.Tensor:
        ctx.of = group, size, is_to_heads
        return _exchanged(states, group, size, is_to_heads=is_to_heads)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        group, size, is_to_heads = ctx.of
        return _exchanged(gradients[0], group, size, is_to_heads=not is_to_heads), None, None, None


def _exchanged(states: torch.Tensor, group: Any, size: int, *, is_to_heads: bool) -> torch.Tensor:
    _, heads, tokens, width = states.shape
    if is_to_heads:
        sent = states.reshape(size, heads // size, tokens, width).contiguous()
    else:
        sent = states.reshape(heads, size, tokens // size, width).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    if is_to_heads:  # [size, h, t, D]: the tokens of each rank, in order
        return received.transpose(0, 1).reshape(1, heads // size, size * tokens, width)
    return received.reshape(1, size * heads, tokens // size, width)


class _Whole(torch.autograd.Function):
    """Values of all ranks, each of which has a slice."""

    @staticmethod
    def forward(ctx: Any, values_n: torch.Tensor, group: Any, place: slice, count: int) -> torch.Tensor:
        ctx.place = place
        whole_N = values_n.new_zeros(count)
        whole_N[place] = values_n
        dist.all_reduce(whole_N, group=group)
        return whole_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return gradients[0][ctx.place], None, None, None
