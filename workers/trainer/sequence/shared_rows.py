"""Logprobs of packed rows that the ranks of a group share: each computes its part of the tokens.

Invariant: every rank of a group gets the result that one rank would compute for the whole row, so losses of
whole responses need no knowledge of groups.
"""

from functools import partial

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from protocol.errors import ConfigError
from workers.models.tail import ModelTail
from workers.trainer.losses import KeptTokens
from workers.trainer.packed_forward import (
    PackedRow,
    forward_row,
    response_logprobs,
    tolerance,
    whole_row,
)
from workers.trainer.ranks import Ranks
from workers.trainer.sequence.group import SequenceGroup


def my_part(row: PackedRow, group: SequenceGroup) -> tuple[PackedRow, slice]:
    """This rank's tokens of a row, and the slice of the row's sampled tokens that they predict."""
    length = row.tokens_1T.shape[1]
    begin, each = group.part(length)
    padding = group.size * each - length
    end = begin + each
    bounds = torch.searchsorted(row.predicting_N, row.predicting_N.new_tensor([begin, end])).tolist()
    place = slice(*bounds)

    def mine(values_1T: torch.Tensor) -> torch.Tensor:
        return F.pad(values_1T, (0, padding))[:, begin:end]

    return PackedRow(
        tokens_1T=mine(row.tokens_1T),
        positions_1T=mine(row.positions_1T),
        lengths=[*row.lengths, *([padding] if padding else [])],  # of the whole row: attention sees all of it
        predicting_N=row.predicting_N[place] - begin,
        targets_N=row.targets_N[place],
        places_N=row.places_N[place],
        kept=_part_of(row.kept, place),
        group=group,
    ), place


def _part_of(kept: KeptTokens | None, place: slice) -> KeptTokens | None:
    if kept is None:
        return None
    starts = kept.starts_N[place.start : place.stop + 1]
    return KeptTokens(kept.codes_N[place], kept.words[starts[0] : starts[-1]], starts - starts[0])


def shared_logprobs(
    model: PreTrainedModel, row: PackedRow, group: SequenceGroup | None, *, temperature: float,
    is_entropy_trained: bool = False, tail: ModelTail | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Like `response_logprobs`, computed by all ranks of a group together: [N], [N] on each."""
    compute = partial(
        response_logprobs, model, temperature=temperature, is_entropy_trained=is_entropy_trained, tail=tail
    )
    if group is None:
        return compute(row)
    part, place = my_part(row, group)
    logprobs_n, entropy_n = compute(part)
    count = len(row.targets_N)
    return group.whole(logprobs_n, place, count), group.whole(entropy_n, place, count)


def check_shared(model: PreTrainedModel, ranks: Ranks, group: SequenceGroup) -> None:
    """Compare a shared row with the same row on one rank. Collective.

    Raises: ConfigError if they differ: another part than attention looks at other tokens.
    """
    group.check_heads(model.config)
    ids = torch.arange(1, 12, device=ranks.device) % model.config.get_text_config().vocab_size
    row = whole_row([ids[:4], ids[4:]])
    with torch.no_grad():
        whole_TV = forward_row(model, row)
        part, place = my_part(row, group)
        gap = (forward_row(model, part) - whole_TV[place]).abs()
    worst = gap.max() if gap.numel() else gap.new_zeros(())
    bound = tolerance(whole_TV.dtype) * max(1.0, whole_TV.abs().max().item())
    total = ranks.sum(worst.float().clone()).item()
    if not total <= bound * ranks.size:
        raise ConfigError(
            f"{type(model).__name__} gives other logits, by {total:.3g}, where {group.size} ranks share a "
            "row. Expected that attention alone looks at other tokens; set trainer.sequence_ranks: 1."
        )
