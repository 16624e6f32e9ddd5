"""Logprobs of chosen tokens from logits, without a float32 copy of all logits.

Shapes: N response tokens, n those of a part, V vocabulary.
"""

from typing import Any, NamedTuple

import torch

from protocol.trainer.memory import CHUNK_ELEMENTS
from workers.trainer.losses.kept import KeptTokens


class Softmax(NamedTuple):
    """How logits become a distribution: temperature and kept sets."""

    temperature: float
    is_entropy_trained: bool = False
    kept: KeptTokens | None = None  # the set that each token was drawn from

    def scaled(self, logits_nV: torch.Tensor, part: slice) -> torch.Tensor:
        """Logits of some rows over the temperature, float32 or better; -inf outside the kept sets."""
        dtype = torch.promote_types(logits_nV.dtype, torch.float32)
        scaled_nV = logits_nV.to(dtype) / self.temperature
        if self.kept is None:
            return scaled_nV
        is_cut_nV = self.kept.cut_off(part, logits_nV.shape[-1], logits_nV.device)
        return scaled_nV.masked_fill_(is_cut_nV, -torch.inf)

    def chosen(
        self, logits_nV: torch.Tensor, targets_n: torch.Tensor, part: slice
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logprobs of the targets, entropies and normalizers, [n] each."""
        scaled_nV = self.scaled(logits_nV, part)
        normalizer_n = torch.logsumexp(scaled_nV, -1)
        chosen_n = scaled_nV.gather(-1, targets_n[:, None]).squeeze(-1)
        entropy_n = torch.special.entr((scaled_nV - normalizer_n[:, None]).exp()).sum(-1)
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
        slope_nV = (self.scaled(logits_nV, part) - normalizer_n[:, None]).exp_()
        if self.is_entropy_trained:  # dH/dlogit = -p (log p + H)
            entropy_slope_nV = torch.special.entr(slope_nV) - slope_nV * entropy_n[:, None]
        slope_nV.neg_().scatter_add_(-1, targets_n[:, None], torch.ones_like(slope_nV[:, :1]))
        slope_nV.mul_((gradients[0] / self.temperature)[:, None])
        if self.is_entropy_trained:
            slope_nV += entropy_slope_nV * (gradients[1] / self.temperature)[:, None]
        return slope_nV


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
        result_NV = torch.empty_like(logits_NV)
        for part in parts_of(len(logits_NV), logits_NV.shape[-1]):
            result_NV[part] = ctx.softmax.slope(
                logits_NV[part],
                targets_N[part],
                part,
                found=(normalizer_N[part], entropy_N[part]),
                gradients=(gradients[0][part], gradients[1][part]),
            )
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
