"""What the corrections cost, as numbers for metrics.jsonl. Shapes: N response tokens."""

import torch

from workers.losses.importance import effective_sample_size
from workers.losses.ratios import log_ratio, nonfinite


def mismatch_metrics(
    trained_logprobs_N: torch.Tensor, rollout_logprobs_N: torch.Tensor, importance_weights_N: torch.Tensor
) -> dict[str, float]:
    """How far the policy that sampled is from the one that is trained, before the update.

    `mismatch_kl` is the k3 estimate E[exp(d) - 1 - d] of KL(rollout, trained) in nats, `logprob_gap_p99` the
    99th percentile of |d|; `importance_weight/*` are the weights that the loss uses, `ess` their effective
    sample size as a share of the tokens. Tokens whose d is not finite are left out. All 0 without tokens.
    """
    is_known_N = ~nonfinite(trained_logprobs_N, rollout_logprobs_N)
    d_N = log_ratio(trained_logprobs_N, rollout_logprobs_N)[is_known_N]
    importance_weights_N = importance_weights_N[is_known_N]
    if not len(d_N):
        d_N = importance_weights_N = d_N.new_zeros(1)
    return {
        "mismatch_kl": (torch.expm1(d_N) - d_N).mean().item(),
        "logprob_gap_p99": d_N.abs().kthvalue(max(1, round(0.99 * len(d_N)))).values.item(),
        "importance_weight/mean": importance_weights_N.mean().item(),
        "importance_weight/max": importance_weights_N.max().item(),
        "importance_weight/ess": effective_sample_size(importance_weights_N),
    }
