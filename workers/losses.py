"""The policy loss: decoupled PPO with truncated importance weights, as pure functions of tensors.

Invariants:
- Log-ratios are taken in float32 or better, whatever the model computes in; one that is not finite becomes 0.
- Token weights (the divisor of the mean) depend on lengths alone: nothing that is masked, clipped or
  neutralised later changes them.
- The importance weight is applied whenever it is given; it never depends on a filter being configured.

Shapes: N response tokens (of a batch or a micro-batch, concatenated without padding), V vocabulary.
"""

from typing import Any, Literal, NamedTuple

import torch

CHUNK_ELEMENTS = 1 << 24  # logits turned to float32 at a time: 64 MB, so that no [N, V] float32 copy exists
LARGEST_LOG_RATIO = 20.0  # exp(20) = 5e8 is past every clip and cap, and still far from overflow when squared


class PolicyLoss(NamedTuple):
    """The loss of some tokens and what is worth reporting of it."""

    loss: torch.Tensor  # scalar: this micro-batch's share of the mini-batch's mean
    clipped: torch.Tensor  # scalar: tokens where the clip is active, so that they give no gradient
    nonfinite: torch.Tensor  # scalar: tokens whose ratio was neutralised


def log_ratio(numerator_N: torch.Tensor, denominator_N: torch.Tensor) -> torch.Tensor:
    """Difference of logprobs, 0 where it is not finite, within ±20. Shape: [N]; units: natural log."""
    difference_N = numerator_N - denominator_N
    difference_N = torch.where(torch.isfinite(difference_N), difference_N, torch.zeros_like(difference_N))
    return difference_N.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def truncated_importance_weights(
    proximal_logprobs_N: torch.Tensor, rollout_logprobs_N: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Weights that correct for the rollout policy differing from the proximal one, clipped from above.

    Shapes: inputs [N]; returns [N] without gradient. Units: natural log; `cap` is a ratio.
    Raises: ValueError if the shapes differ or cap < 1.
    Source: AReaL (arXiv 2505.24298), decoupled PPO; truncated per token.
    """
    if proximal_logprobs_N.shape != rollout_logprobs_N.shape or cap < 1:
        raise ValueError(
            f"Got {tuple(proximal_logprobs_N.shape)} proximal and {tuple(rollout_logprobs_N.shape)} rollout "
            f"logprobs with cap {cap}; expected equal shapes and a cap of at least 1."
        )
    return log_ratio(proximal_logprobs_N, rollout_logprobs_N).detach().exp().clamp(max=cap)


def token_weights(
    response_lengths: torch.Tensor, aggregation: Literal["token_mean", "sequence_mean"]
) -> torch.Tensor:
    """What each token counts in the mean over one mini-batch (of all ranks); they sum to 1.

    Shapes: lengths of the B responses; returns [N], N their sum. `token_mean` weighs tokens alike,
    `sequence_mean` responses alike. Responses without tokens count for nothing.
    """
    lengths = response_lengths.to(torch.float64)
    if aggregation == "token_mean":
        per_response = torch.ones_like(lengths) / lengths.sum().clamp(min=1)
    else:
        per_response = 1 / (lengths.clamp(min=1) * (lengths > 0).sum().clamp(min=1))
    return per_response.repeat_interleave(response_lengths).to(torch.float32)


def policy_loss(
    logprobs_N: torch.Tensor,
    proximal_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    importance_weights_N: torch.Tensor,
    *,
    token_weights_N: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """sum of -weight * importance * min(u A, clip(u, 1 - low, 1 + high) A) with u = policy / proximal.

    Shapes: all [N]; only `logprobs_N` carries a gradient. Sum over micro-batches and ranks to get the mean.
    Source: AReaL (arXiv 2505.24298) section 5.2; asymmetric clip from DAPO (arXiv 2503.14476).
    """
    ratio_N = log_ratio(logprobs_N, proximal_logprobs_N).exp()
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1 - clip_low, 1 + clip_high) * advantages_N
    objective_N = torch.minimum(plain_N, clipped_N) * importance_weights_N
    return PolicyLoss(
        loss=-(objective_N * token_weights_N).sum(),
        clipped=(clipped_N < plain_N).sum(),
        nonfinite=(~torch.isfinite(logprobs_N - proximal_logprobs_N)).sum(),
    )


def mismatch_metrics(
    trained_logprobs_N: torch.Tensor, rollout_logprobs_N: torch.Tensor, importance_weights_N: torch.Tensor
) -> dict[str, float]:
    """How far the policy that sampled is from the one that is trained, before the update.

    `mismatch_kl` is the k3 estimate E[exp(d) - 1 - d] of KL(rollout, trained) in nats, `logprob_gap_p99` the
    99th percentile of |d|; `importance_weight/*` are the weights that the loss uses. All 0 without tokens.
    """
    d_N = log_ratio(trained_logprobs_N, rollout_logprobs_N)
    if not len(d_N):
        d_N = importance_weights_N = d_N.new_zeros(1)
    return {
        "mismatch_kl": (torch.expm1(d_N) - d_N).mean().item(),
        "logprob_gap_p99": d_N.abs().kthvalue(max(1, round(0.99 * len(d_N)))).values.item(),
        "importance_weight/mean": importance_weights_N.mean().item(),
        "importance_weight/max": importance_weights_N.max().item(),
    }


class _ChosenLogprobs(torch.autograd.Function):
    """Written out because autograd would keep several float32 [N, V] alive; this keeps only the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        logprobs_N, entropy_N, normalizer_N = (
            torch.empty(len(targets_N), dtype=dtype, device=logits_NV.device) for _ in range(3)
        )
        for part in _chunks(logits_NV):
            scaled_nV = logits_NV[part].to(dtype) / temperature
            normalizer_N[part] = torch.logsumexp(scaled_nV, -1)
            chosen_n = scaled_nV.gather(-1, targets_N[part, None]).squeeze(-1)
            logprobs_N[part] = chosen_n - normalizer_N[part]
            entropy_N[part] = torch.special.entr((scaled_nV - normalizer_N[part, None]).exp()).sum(-1)
        ctx.save_for_backward(logits_NV, targets_N, normalizer_N)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
        logits_NV, targets_N, normalizer_N = ctx.saved_tensors
        gradient_N = gradients[0] / ctx.temperature
        result_NV = torch.empty_like(logits_NV)
        for part in _chunks(logits_NV):
            scaled_nV = logits_NV[part].to(normalizer_N.dtype) / ctx.temperature
            slope_nV = (scaled_nV - normalizer_N[part, None]).exp_().neg_()
            slope_nV.scatter_add_(-1, targets_N[part, None], torch.ones_like(slope_nV[:, :1]))
            result_NV[part] = slope_nV.mul_(gradient_N[part, None])
        return result_NV, None, None


def _chunks(logits_NV: torch.Tensor) -> list[slice]:
    rows = max(1, CHUNK_ELEMENTS // logits_NV.shape[-1])
    return [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]


def chosen_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the target tokens and entropy (no gradient) of softmax(logits / temperature), in nats.

    Shapes: [N, V] and [N] to [N], [N]; float32 or better. Top-p and top-k are not applied: with them the
    engine's logprobs are of a narrower distribution, and the importance weights are biased downward.
    """
    return _ChosenLogprobs.apply(logits_NV, targets_N, temperature)
