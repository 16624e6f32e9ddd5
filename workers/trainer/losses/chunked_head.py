"""Logprobs of chosen tokens from hidden states: applies head and softmax to some rows at a time.

Invariants: logits of only one chunk exist at a time, and the backward pass computes them again; so do their
gradients, but that of a head in bfloat16 those of a few chunks wait to be summed together.

Shapes: N response tokens, n those of a chunk, H width of the hidden states, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from workers.trainer.losses.logprobs import Softmax, parts_of

SUMMED_CHUNKS = 4
"""Chunks whose gradients of a bfloat16 head are summed together. Each sum goes over all of a float32 gradient
of the head, which is larger than a chunk: 10 chunks of 152k tokens by 1,024 took 2.4 times as long alone."""
Linear = Callable[[torch.Tensor], torch.Tensor]
LogitsOf = Callable[[torch.Tensor, Linear], torch.Tensor]
"""Maps hidden states [n, H] and a stand-in for the head to logits [n, V], with the family's own scaling."""


class _HeadLogprobs(torch.autograd.Function):
    """The head's weights are arguments, so that their gradients reach tied or sharded parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        states_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        logits_of: LogitsOf,
        softmax: Softmax,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        found = []
        for part in parts_of(len(states_NH), len(weight_VH)):
            logits_nV = logits_of(states_NH[part], lambda x: nn.functional.linear(x, weight_VH, bias_V))
            found.append(softmax.chosen(logits_nV, targets_N[part], part))
            del logits_nV  # before the next chunk's are made
        logprobs_N, entropy_N, normalizer_N = (torch.cat(column) for column in zip(*found, strict=True))
        ctx.save_for_backward(states_NH, weight_VH, bias_V, targets_N, normalizer_N, entropy_N)
        ctx.logits_of, ctx.softmax = logits_of, softmax
        if not softmax.is_entropy_trained:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        states_NH, weight_VH, bias_V, targets_N, normalizer_N, entropy_N = ctx.saved_tensors
        head = _HeadGradients(weight_VH, bias_V, is_trained=ctx.needs_input_grad[1])
        states_slope_NH = torch.empty_like(states_NH)
        for part in parts_of(len(states_NH), len(weight_VH)):
            found, above = (normalizer_N[part], entropy_N[part]), (gradients[0][part], gradients[1][part])

            def slope(
                logits_nV: torch.Tensor, part: slice = part, found: Any = found, above: Any = above
            ) -> torch.Tensor:
                of = ctx.softmax.slope(logits_nV, targets_N[part], part, found=found, gradients=above)
                return of.to(logits_nV.dtype)

            states_slope_NH[part] = head.through(states_NH[part], ctx.logits_of, slope)
        return states_slope_NH, *head.found(), None, None, None


class _HeadGradients:
    """Sums up the gradients of the head over chunks, in float32 or better."""

    def __init__(self, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, *, is_trained: bool) -> None:
        self._weight_VH, self._bias_V = weight_VH, bias_V
        dtype = torch.promote_types(weight_VH.dtype, torch.float32)
        self._weight_slope_VH = torch.zeros_like(weight_VH, dtype=dtype) if is_trained else None
        self._unsummed: list[tuple[torch.Tensor, torch.Tensor]] = []  # of logits, and the head's inputs
        self._bias_slope_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=dtype)

    def through(
        self,
        states_nH: torch.Tensor,
        logits_of: LogitsOf,
        slope: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Compute the logits again and backpropagate; returns the gradient [n, H] of the states."""
        seen: list[torch.Tensor] = []

        def linear(inputs: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                raw = nn.functional.linear(inputs, self._weight_VH, self._bias_V)
            seen[:] = [inputs, raw.requires_grad_()]
            return raw

        with torch.enable_grad():
            leaf_nH = states_nH.detach().requires_grad_()
            logits_nV = logits_of(leaf_nH, linear)
        (inputs, raw), logits_slope_nV = seen, slope(logits_nV.detach())
        (raw_slope,) = torch.autograd.grad(logits_nV, raw, logits_slope_nV)
        del logits_nV, logits_slope_nV, raw
        seen.clear()
        inputs_slope = raw_slope @ self._weight_VH
        self._add(raw_slope.flatten(0, -2), inputs.detach().flatten(0, -2))
        return torch.autograd.grad(inputs, leaf_nH, inputs_slope)[0]

    def _add(self, slope_nV: torch.Tensor, inputs_nH: torch.Tensor) -> None:
        if self._weight_slope_VH is not None:
            if self._weight_slope_VH.dtype == slope_nV.dtype:
                self._weight_slope_VH.addmm_(slope_nV.mT, inputs_nH)
            else:
                self._unsummed.append((slope_nV, inputs_nH))
                if len(self._unsummed) == SUMMED_CHUNKS:
                    self._sum()
        if self._bias_slope_V is not None:
            self._bias_slope_V += slope_nV.sum(0, dtype=self._bias_slope_V.dtype)

    def _sum(self) -> None:
        """Add what waits to the gradient of the weight, some rows of it at a time."""
        if self._weight_slope_VH is None or not self._unsummed:
            return
        slopes, inputs = zip(*self._unsummed, strict=True)
        self._unsummed.clear()
        inputs_mH = torch.cat(inputs)
        for part in parts_of(*self._weight_slope_VH.shape):
            slope_mv = torch.cat([slope_nV[:, part] for slope_nV in slopes])
            self._weight_slope_VH[part] += slope_mv.mT @ inputs_mH

    def found(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Gradients of weight and bias, in the weight's dtype."""
        self._sum()
        weight_slope_VH, bias_slope_V = (
            None if slope is None else slope.to(self._weight_VH.dtype)
            for slope in (self._weight_slope_VH, self._bias_slope_V)
        )
        return weight_slope_VH, bias_slope_V


def head_logprobs(
    states_NH: torch.Tensor, head: nn.Linear, targets_N: torch.Tensor, *, logits_of: LogitsOf,
    softmax: Softmax,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Like `chosen_logprobs` of `logits_of(states_NH, head)`, in memory that does not grow with N * V."""
    return _HeadLogprobs.apply(states_NH, head.weight, head.bias, targets_N, logits_of, softmax)
