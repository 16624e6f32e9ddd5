"""The pieces of RL algorithms, as pure functions of tensors (docs/algorithms.md).

Invariants: every piece runs in the precision that it is given, float32 or better, so that it can be compared
with numbers worked out by hand; no piece depends on ranks, packing or optimizers.
"""

from workers.trainer.losses.advantages import generalized_advantages, standardized, token_rewards
from workers.trainer.losses.aggregation import divisor, response_weights
from workers.trainer.losses.chunked_head import head_logprobs
from workers.trainer.losses.critic import explained_variance, value_loss, value_metrics
from workers.trainer.losses.importance import effective_sample_size, importance_weights, loglinear_proximal
from workers.trainer.losses.kept import KeptTokens
from workers.trainer.losses.logprobs import Softmax, chosen_logprobs, parts_of
from workers.trainer.losses.metrics import engine_metrics, means, mismatch_metrics
from workers.trainer.losses.policy import LOSSES, Loss, TokenLoss, Tokens, policy_loss
from workers.trainer.losses.ratios import kl_estimate, log_ratio, nonfinite, over
from workers.trainer.losses.rejection import rejection

__all__ = [
    "LOSSES",
    "KeptTokens",
    "Loss",
    "Softmax",
    "TokenLoss",
    "Tokens",
    "chosen_logprobs",
    "divisor",
    "effective_sample_size",
    "engine_metrics",
    "explained_variance",
    "generalized_advantages",
    "head_logprobs",
    "importance_weights",
    "kl_estimate",
    "log_ratio",
    "loglinear_proximal",
    "means",
    "mismatch_metrics",
    "nonfinite",
    "over",
    "parts_of",
    "policy_loss",
    "rejection",
    "response_weights",
    "standardized",
    "token_rewards",
    "value_loss",
    "value_metrics",
]
