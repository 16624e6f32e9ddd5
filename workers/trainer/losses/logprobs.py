"""Logprobs of chosen tokens out of logits, without a float32 copy of them all.

Shapes: N response tokens, V vocabulary.
"""

from typing import Any

import torch

from workers.trainer.losses.kept import KeptTokens

CHUNK_ELEMENTS = 1 << 24  # logits turned to float32 at a time: 64 MB, so that no [N, V] float32 copy exists


class _ChosenLogprobs(torch.autograd.Function):
    """Written out because autograd would keep several float32 [N, V] alive; this keeps only the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_NV: torch.Tensor,
        targets_N: torch.Tensor,
        temperature: float,
        is_entropy_trained: bool,
        kept: KeptTokens | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        logprobs_N, entropy_N, normalizer_N = (
            torch.empty(len(targets_N), dtype=dtype, device=logits_NV.device) for _ in range(3)
        )
        for part in _chunks(logits_NV):
            scaled_nV = _scaled(logits_NV, part, dtype, temperature, kept)
            normalizer_N[part] = torch.logsumexp(scaled_nV, -1)
            chosen_n = scaled_nV.gather(-1, targets_N[part, None]).squeeze(-1)
            logprobs_N[part] = chosen_n - normalizer_N[part]
            entropy_N[part] = torch.special.entr((scaled_nV - normalizer_N[part, None]).exp()).sum(-1)
        ctx.save_for_backward(logits_NV, targets_N, normalizer_N, entropy_N)
        ctx.temperature, ctx.is_entropy_trained, ctx.kept = temperature, is_entropy_trained, kept
        if not is_entropy_trained:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None, None, None]:
        logits_NV, targets_N, normalizer_N, entropy_N = ctx.saved_tensors
        result_NV = torch.empty_like(logits_NV)
        for part in _chunks(logits_NV):
            scaled_nV = _scaled(logits_NV, part, normalizer_N.dtype, ctx.temperature, ctx.kept)
            slope_nV = (scaled_nV - normalizer_N[part, None]).exp_()
            if ctx.is_entropy_trained:  # dH/dlogit = -p (log p + H)
                entropy_slope_nV = torch.special.entr(slope_nV) - slope_nV * entropy_N[part, None]
            slope_nV.neg_().scatter_add_(-1, targets_N[part, None], torch.ones_like(slope_nV[:, :1]))
            slope_nV.mul_((gradients[0] / ctx.temperature)[part, None])
            if ctx.is_entropy_trained:
                slope_nV += entropy_slope_nV * (gradients[1] / ctx.temperature)[part, None]
            result_NV[part] = slope_nV
        return result_NV, None, None, None, None


def _scaled(
    logits_NV: torch.Tensor, part: slice, dtype: torch.dtype, temperature: float, kept: KeptTokens | None
) -> torch.Tensor:
    """Of a part of the rows, at the temperature; -inf where the token could not be drawn."""
    scaled_nV = logits_NV[part].to(dtype) / temperature
    if kept is None:
        return scaled_nV
    is_cut_nV = kept.cut_off(part, logits_NV.shape[-1], logits_NV.device)
    return scaled_nV.masked_fill_(is_cut_nV, -torch.inf)


def _chunks(logits_NV: torch.Tensor) -> list[slice]:
    rows = max(1, CHUNK_ELEMENTS // logits_NV.shape[-1])
    return [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]


def chosen_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, *, temperature: float, is_entropy_trained: bool = False,
    kept: KeptTokens | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logprobs of the target tokens and entropy of softmax(logits / temperature), in nats.

    Shapes: [N, V] and [N] to [N], [N]; float32 or better. The entropy has a gradient only if it is trained,
    which costs one more pass over the logits. `kept`: what the engine drew each token from; the softmax is
    over that alone, and no other logit gets a gradient.
    """
    return _ChosenLogprobs.apply(logits_NV, targets_N, temperature, is_entropy_trained, kept)
