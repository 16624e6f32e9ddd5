"""Per-token advantages, for settings that need more than the response's outcome: KL in the reward, a critic.

Also whitening over the batch. Invariants: no gradients; comparing the responses of a group is not done here
but in the controller, which knows groups before the batch is complete (strategies/outcomes.py).

Shapes: N response tokens of whole responses, concatenated; B responses; T the longest.
"""

from typing import NamedTuple

import torch

EPSILON = 1e-6  # keeps advantages that are all equal at zero instead of dividing by zero


class Targets(NamedTuple):
    """The targets that policy and critic are trained towards: [N]."""

    advantages_N: torch.Tensor
    returns_N: torch.Tensor


def token_rewards(
    outcomes_B: torch.Tensor, response_lengths_B: torch.Tensor, penalties_N: torch.Tensor
) -> torch.Tensor:
    """Per-token rewards [N]: minus the penalty everywhere, plus the outcome at a response's last token."""
    rewards_N = -penalties_N
    lasts_B = response_lengths_B.cumsum(0) - 1
    has_tokens_B = response_lengths_B > 0
    rewards_N[lasts_B[has_tokens_B]] += outcomes_B[has_tokens_B].to(rewards_N.dtype)
    return rewards_N


def generalized_advantages(
    rewards_N: torch.Tensor,
    values_N: torch.Tensor,
    response_lengths_B: torch.Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Targets:
    """Advantages and returns over the tokens of each response; the value after its last token is 0.

    With values 0 and lambda 1 the advantages are the discounted sums of the rewards that follow.
    Source: generalized advantage estimation (arXiv 1506.02438).
    """
    lengths = response_lengths_B.to(rewards_N.device)
    longest = int(lengths.max()) if len(lengths) else 0
    is_token_BT = torch.arange(longest, device=lengths.device) < lengths[:, None]

    def padded(flat_N: torch.Tensor) -> torch.Tensor:
        return flat_N.new_zeros(is_token_BT.shape).masked_scatter(is_token_BT, flat_N)

    rewards_BT, values_BT = padded(rewards_N), padded(values_N)
    next_BT = torch.nn.functional.pad(values_BT, (0, 1))[:, 1:]
    deltas_BT = rewards_BT + gamma * next_BT - values_BT
    advantages_BT, running_B = torch.empty_like(deltas_BT), deltas_BT.new_zeros(len(lengths))
    for place in reversed(range(longest)):
        running_B = deltas_BT[:, place] + gamma * gae_lambda * running_B
        advantages_BT[:, place] = running_B
    advantages_N = advantages_BT[is_token_BT]
    return Targets(advantages_N, advantages_N + values_N)


def standardized(advantages_N: torch.Tensor, *, is_scaled: bool) -> torch.Tensor:
    """Subtract the batch's mean from advantages, and divide by their sample deviation if scaled.

    The mean is over the batch's tokens, in float64: dividing by EPSILON would magnify float32's rounding.

    Source: REINFORCE++ (arXiv 2501.03262).
    """
    if len(advantages_N) < 2:
        return advantages_N - advantages_N
    centred_N = advantages_N.double() - advantages_N.double().mean()
    scaled_N = centred_N / (centred_N.std() + EPSILON) if is_scaled else centred_N
    return scaled_N.to(advantages_N.dtype)
