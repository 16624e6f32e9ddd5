"""How far an engine in half precision may be from the exact logprobs: about as far as a plain forward pass.

A flat tolerance says nothing, since the step of bfloat16 grows with the logits. What is compared is the error
of the engine and the error of transformers' own forward pass in the same precision, both against a float32
pass of the very same (rounded) weights. FlashAttention's tests set the custom: at most twice the error of the
reference in low precision. Two errors are held to it here:

- Root mean square over the tokens of one version: at most 1.5 times. Both are sums of the same number of
  roundings, in another order, so the ratio is near 1 (measured on 480 tokens: torch 0.98 to 1.02, vLLM on a
  CPU 0.96 to 1.16), and one token in 480 that is off by 1 already makes 1.7.
- Largest over all versions: at most twice. It hangs on single tokens, so it is looser.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from subject import Subject, Tokens, plain_logprobs

from workers.engines.interface import Generation

MEAN_FACTOR, LARGEST_FACTOR = 1.5, 2.0


@dataclass(frozen=True)
class Rounding:
    """Errors of the logprobs of the same tokens, in nats: the engine's, and those of a plain forward pass."""

    engine: torch.Tensor
    plain: torch.Tensor

    @property
    def mean_ratio(self) -> float:
        """Root mean square of the engine's errors to that of the plain pass."""
        return (self.engine.square().mean() / self.plain.square().mean()).sqrt().item()

    @property
    def largest_ratio(self) -> float:
        """The engine's largest error to that of the plain pass."""
        return (self.engine.abs().max() / self.plain.abs().max()).item()

    def __str__(self) -> str:
        engine, plain = (
            f"{e.square().mean().sqrt():.4f} (largest {e.abs().max():.3f})" for e in (self.engine, self.plain)
        )
        return f"error of {len(self.engine)} logprobs: engine {engine}, plain forward pass {plain}"


def rounding(
    subject: Subject, published: dict[str, torch.Tensor], sampled: Tokens, added: Sequence[Generation]
) -> Rounding:
    """Errors under the weights that were published, in their precision, at temperature 1."""
    (dtype,) = {str(tensor.dtype).removeprefix("torch.") for tensor in published.values()}
    widened = {name: tensor.float() for name, tensor in published.items()}
    exact = plain_logprobs(subject.plain_under(widened), sampled, added)
    plain = plain_logprobs(subject.plain_under(published, dtype), sampled, added)
    reported = torch.tensor([item.logprob for generation in added for item in sampled[generation.key]])
    return Rounding(reported - exact, plain - exact)


def together(roundings: Sequence[Rounding]) -> Rounding:
    """Those of several versions as one."""
    return Rounding(torch.cat([r.engine for r in roundings]), torch.cat([r.plain for r in roundings]))
