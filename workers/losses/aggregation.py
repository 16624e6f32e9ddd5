"""How much each token counts in the loss of a mini-batch.

Invariant: token weights depend on lengths alone, so the divisor is fixed before anything is filtered, masked,
rejected or clipped.
"""

from typing import Literal

import torch

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "group_mean"]


def token_weights(
    response_lengths: torch.Tensor,
    aggregation: Aggregation,
    *,
    groups: torch.Tensor | None = None,
    max_tokens: int = 1,
) -> torch.Tensor:
    """What each token of a mini-batch (of all ranks) counts. Responses without tokens count for nothing.

    `token_mean`: tokens alike (DAPO). `sequence_mean`: responses alike, a response being the mean of its
    tokens (GRPO). `group_mean`: groups alike, a group being the mean of its tokens. `sequence_sum`: every
    token 1 / (responses * `max_tokens`), so that a long response is not discounted (Dr.GRPO); the only one
    whose weights do not sum to 1.

    Shapes: lengths and `groups` (an index, for `group_mean`) of the B responses; returns [N] float64, N the
    sum of the lengths. Raises: ValueError if `group_mean` is asked for without groups.
    """
    lengths = response_lengths.to(torch.float64)
    responses = (lengths > 0).sum().clamp(min=1)
    if aggregation == "token_mean":
        per_token = torch.ones_like(lengths) / lengths.sum().clamp(min=1)
    elif aggregation == "sequence_mean":
        per_token = 1 / (lengths.clamp(min=1) * responses)
    elif aggregation == "sequence_sum":
        per_token = torch.ones_like(lengths) / (responses * max_tokens)
    elif groups is None:
        raise ValueError("group_mean weighs groups alike; expected `groups`, the index of each response's.")
    else:
        tokens = lengths.new_zeros(int(groups.max()) + 1).index_add(0, groups, lengths)
        per_token = 1 / (tokens.clamp(min=1)[groups] * (tokens > 0).sum().clamp(min=1))
    return per_token.repeat_interleave(response_lengths)
