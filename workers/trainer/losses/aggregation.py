"""The weight of each token in the loss of a mini-batch (`trainer.loss_aggregation`).

Invariant: token weights depend on lengths alone, so the divisor is fixed before anything is filtered, masked,
rejected or clipped.
"""

from typing import Literal

import torch

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "group_mean"]


def divisor(
    response_lengths: torch.Tensor, aggregation: Aggregation, *, groups: torch.Tensor | None = None
) -> int:
    """The number that the loss of a mini-batch is divided by.

    It counts the mini-batch's tokens, responses or groups that have tokens. The divisor of a whole is the sum
    of those of its parts, if the parts do not split groups.

    Raises: ValueError if `group_mean` is asked for without groups.
    """
    has_tokens = response_lengths > 0
    if aggregation == "token_mean":
        return int(response_lengths.sum())
    if aggregation != "group_mean":
        return int(has_tokens.sum())
    if groups is None:
        raise ValueError("group_mean weighs groups alike; expected `groups`, the index of each response's.")
    return len(torch.unique(groups[has_tokens]))


def response_weights(
    response_lengths: torch.Tensor,
    aggregation: Aggregation,
    *,
    groups: torch.Tensor | None = None,
    max_tokens: int = 1,
) -> torch.Tensor:
    """The weight of each token of a response, as one number per response.

    `token_mean`: tokens alike (DAPO). `sequence_mean`: responses alike, a response being the mean of its
    tokens (GRPO). `group_mean`: groups alike, a group being the mean of its tokens. `sequence_sum`: every
    token 1 / (responses * `max_tokens`), so that a long response is not discounted (Dr.GRPO); the only one
    whose weights do not sum to 1.

    Shapes: lengths and `groups` (an index, for `group_mean`) of the B responses; returns [B] float64. Raises:
    ValueError if `group_mean` is asked for without groups.
    """
    lengths = response_lengths.to(torch.float64)
    whole = max(1, divisor(response_lengths, aggregation, groups=groups))
    if aggregation == "token_mean":
        per_token = torch.ones_like(lengths) / whole
    elif aggregation == "sequence_mean":
        per_token = 1 / (lengths.clamp(min=1) * whole)
    elif aggregation == "sequence_sum":
        per_token = torch.ones_like(lengths) / (whole * max_tokens)
    else:
        assert groups is not None, "divisor has refused that"
        tokens = lengths.new_zeros(int(groups.max()) + 1).index_add(0, groups, lengths)
        per_token = 1 / (tokens.clamp(min=1)[groups] * whole)
    return per_token
