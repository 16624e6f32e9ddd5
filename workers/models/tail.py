"""The tail of a causal language model: the part that computes logits from the backbone's hidden states.

Invariant: logits are made by the model's own forward pass, in which given hidden states replace the backbone.
So caps, scales and biases of a family are applied, whatever they are.

Shapes: T tokens of a row, N of its positions, n some of those, H width of the hidden states, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

Linear = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class ModelTail:
    """The tail of one model. It holds no weights of its own."""

    model: PreTrainedModel
    backbone: nn.Module
    head: nn.Linear

    def states(
        self, arguments: Mapping[str, Any], predicting_N: torch.Tensor
    ) -> tuple[torch.Tensor, Any] | None:
        """Hidden states [N, H] at these positions, and the backbone's other outputs, for `logits`.

        None if this family calls its backbone in another way.
        """
        found: list[Any] = []
        backbone_forward = self.backbone.forward

        def keep(*args: Any, **kwargs: Any) -> Any:
            found.append(backbone_forward(*args, **kwargs))
            return found[-1]

        with called_as(self.backbone, keep):  # the head gets no positions
            type(self.model).forward(self.model, **arguments, logits_to_keep=predicting_N[:0])
        if len(found) != 1 or not isinstance(found[0], ModelOutput):
            return None
        given: Any = found[0]
        return given.last_hidden_state[0, predicting_N], replace(given, last_hidden_state=None)

    def logits(
        self, states_nH: torch.Tensor, given: Any, arguments: Mapping[str, Any], linear: Linear | None = None
    ) -> torch.Tensor:
        """Logits [n, V] of these states. `linear` replaces the head."""
        output = replace(given, last_hidden_state=states_nH[None])
        with called_as(self.backbone, lambda *_, **__: output):
            if linear is None:
                return type(self.model).forward(self.model, **arguments).logits.squeeze(0)
            with called_as(self.head, linear):
                return type(self.model).forward(self.model, **arguments).logits.squeeze(0)


def tail_of(model: PreTrainedModel) -> ModelTail | None:
    """The model's tail; None if other weights than a backbone and a plain linear head are trained."""
    backbone, head = model.get_decoder(), model.get_output_embeddings()
    if type(head) is not nn.Linear or backbone is model or not isinstance(backbone, nn.Module):
        return None
    known = {id(parameter) for module in (backbone, head) for parameter in module.parameters()}
    has_more = any(p.requires_grad and id(p) not in known for p in model.parameters())
    return None if has_more else ModelTail(model, backbone, head)


@contextmanager
def called_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace the forward pass of a module in this context; its hooks still run."""
    before = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
