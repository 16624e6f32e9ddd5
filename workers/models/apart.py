"""Computes the sequences of a packed row side by side, each padded at its end, in place of the backbone.

It is for layers that carry a state from token to token (linear attention, convolutions, state spaces), which
in a packed row would carry it from one sequence into the next.

Invariants: tokens after a sequence change nothing in it, as every layer looks back only (`check_no_leak`
tests it); the rest of the model, its head included, gets the packed row.

Shapes: S sequences, L tokens of the longest, T of all of them, H width of the hidden states.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel


class Apart:
    """Replaces a backbone's forward pass."""

    def __init__(self, backbone: nn.Module, *, names_lengths: bool) -> None:
        """`names_lengths`: its attention takes the lengths of sequences in a row."""
        self._forward = backbone.forward
        self._names_lengths = names_lengths

    def __call__(
        self, input_ids: torch.Tensor, *, sequence_lengths: list[int] | None = None, **arguments: Any
    ) -> Any:
        """The backbone's output for a row [1, T] of sequences of these lengths, or for any input."""
        if sequence_lengths is None:
            return self._forward(input_ids=input_ids, **arguments)
        longest, device = max(sequence_lengths), input_ids.device
        tokens_SL = pad_sequence(list(input_ids[0].split(sequence_lengths)), batch_first=True)
        if "position_ids" in arguments:
            arguments["position_ids"] = torch.arange(longest, device=device).expand_as(tokens_SL)
        if self._names_lengths:  # to attention, each row of [S, L] is one sequence
            arguments["sequence_lengths"] = [longest]
        output = self._forward(input_ids=tokens_SL, **arguments)
        places_T = torch.cat(
            [torch.arange(length) + row * longest for row, length in enumerate(sequence_lengths)]
        ).to(device)
        states_TH = output.last_hidden_state.flatten(0, 1)[places_T]
        return replace(output, last_hidden_state=states_TH[None])


def set_apart(model: PreTrainedModel, *, names_lengths: bool) -> None:
    """Have the model compute the sequences of a packed row separately from now on."""
    backbone: Any = model.get_decoder()
    backbone.forward = Apart(backbone, names_lengths=names_lengths)


def is_apart(model: PreTrainedModel) -> bool:
    """Whether the model computes the sequences of a packed row separately."""
    backbone: Any = model.get_decoder()
    return isinstance(backbone.__dict__.get("forward"), Apart)
