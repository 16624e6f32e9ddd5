"""Logprobs of chosen tokens from logits, without a float32 copy of all logits.

Shapes: N response tokens, n those of a part, V vocabulary.
"""

from typing import Any, NamedTuple

import torch

from protocol.trainer.memory import CHUNK_ELEMENTS
from workers.trainer.losses.kept import KeptTokens

ZERO = -1e4
"""A logprob whose exp is 0 in every dtype, for -inf, which times 0 would be NaN."""


class Softmax(NamedTuple):
    """How logits become a distribution: temperature and kept sets."""

    temperature: float
    is_entropy_trained: bool = False
    kept: KeptTokens | None = None  # the set that each token was drawn from

    def scaled(self, logits_nV: torch.Tensor, part: slice) -> torch.Tensor:
        """Logits of some rows over the temperature, float32 or better; -inf outside the kept sets.

        `logits_nV` itself, if it is just that.
        """
        scaled_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
        if self.temperature != 1.0:
            scaled_nV = torch.div(scaled_nV, self.temperature, out=_reused(scaled_nV, logits_nV))
        if self.kept is None:
            return scaled_nV
        is_cut_nV = self.kept.cut_off(part, logits_nV.shape[-1], logits_nV.device)
        own_nV = _reused(scaled_nV, logits_nV)
        return (scaled_nV.clone() if own_nV is None else own_nV).masked_fill_(is_cut_nV, -torch.inf)

    def chosen(
        self, logits_nV: torch.Tensor, targets_n: torch.Tensor, part: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logprobs of the targets, entropies and normalizers, [n] each.

        In few passes over the logits, which take longer than the head of a narrow model. Not by torch's
        log_softmax: over 152k tokens its sum on a CPU is off by 2e-5, this one by 1e-6.
        """
        scaled_nV = self.scaled(logits_nV, part)
        chosen_n = scaled_nV.gather(-1, targets_n[:, None]).squeeze(-1)
        largest_n1 = scaled_nV.amax(-1, keepdim=True)
        below_nV = torch.sub(scaled_nV, largest_n1, out=_reused(scaled_nV, logits_nV))
        weights_nV = below_nV.exp()
        total_n = weights_nV.sum(-1)
        log_total_n = total_n.log()
        entropy_n = log_total_n - weights_nV.mul_(below_nV.clamp_(min=ZERO)).sum(-1) / total_n
        normalizer_n = largest_n1.squeeze(-1) + log_total_n
        return chosen_n - normalizer_n, entropy_n, normalizer_n

    def slope(
        self,
        logits_nV: torch.Tensor,
        targets_n: torch.Tensor,
        part: slice,
        *,
        found: tuple[torch.Tensor, torch.Tensor],
        gradients: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """The gradient [n, V] of the logits.

        `found`: normalizers and entropies; `gradients`: the gradients of logprobs and entropies.
        """
        normalizer_n, entropy_n = found
        scaled_nV = self.scaled(logits_nV, part)
        below_nV = torch.sub(scaled_nV, normalizer_n[:, None], out=_reused(scaled_nV, logits_nV))
        above_n1, entropy_above_n1 = ((of / self.temperature)[:, None] for of in gradients)
        if self.is_entropy_trained:  # dH/dlogit = -p (log p + H)
            slope_nV = below_nV.exp()
            below_nV.clamp_(min=ZERO).add_(entropy_n[:, None]).mul_(-entropy_above_n1).sub_(above_n1)
            slope_nV.mul_(below_nV)
        else:
            slope_nV = below_nV.exp_().mul_(-above_n1)
        return slope_nV.scatter_add_(-1, targets_n[:, None], above_n1.to(slope_nV.dtype))


def _reused(made: torch.Tensor, given: torch.Tensor) -> torch.Tensor | None:
    """The tensor to write a result over: `made`, unless it is the very `given`."""
    return None if made is given else made


class _ChosenLogprobs(torch.autograd.Function):
    """A custom backward, because autograd would keep several float32 [N, V]; this keeps only the logits."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, targets_N: torch.Tensor, softmax: Softmax
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = parts_of(len(logits_NV), logits_NV.shape[-1])
        found = [softmax.chosen(logits_NV[part], targets_N[part], part) for part in parts]
        logprobs_N, entropy_N, normalizer_N = (torch.cat(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(logits_NV, targets_N, normalizer_N, entropy_N)
        ctx.softmax = softmax
        if not softmax.is_entropy_trained:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
        logits_NV, targets_N, normalizer_N, entropy_N = ctx.saved_tensors

        def slope(part: slice) -> torch.Tensor:
            found, above = (normalizer_N[part], entropy_N[part]), (gradients[0][part], gradients[1][part])
            return ctx.softmax.slope(logits_NV[part], targets_N[part], part, found=found, gradients=above)

        parts = parts_of(len(logits_NV), logits_NV.shape[-1])
        if len(parts) == 1:
            return slope(parts[0]).to(logits_NV.dtype), None, None
        result_NV = torch.empty_like(logits_NV)
        for part in parts:
            result_NV[part] = slope(part)
        return result_NV, None, None


def parts_of(rows: int, vocabulary: int) -> list[slice]:
    """The rows of logits in chunks, as slices; for no rows one empty slice."""
    each = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + each, rows)) for start in range(0, max(1, rows), each)]


def chosen_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, *, temperature: float, is_entropy_trained: bool = False,
    kept: KeptTokens | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logprobs of the target tokens and entropy of softmax(logits / temperature), in nats.

    Shapes: [N, V] and [N] to [N], [N]; float32 or better. The entropy has a gradient only if it is trained,
    which costs one more pass over the logits. `kept`: the set that each token was drawn from; the softmax is
    over that set alone, and logits outside it get no gradient.
    """
    return _ChosenLogprobs.apply(logits_NV, targets_N, Softmax(temperature, is_entropy_trained, kept))
