"""States of rows in layers that have states instead of keys and values: linear attention, convolutions.

A state depends on all tokens before, so it can be copied and continued, but never cut back.

Invariants: row r holds the states after its generation's first tokens; a pass over rows changes only the
states of these rows, using transformers' own layer (`LinearAttentionLayer`).

Shapes: R rows, B sequences of one pass; behind that a layer's own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from transformers.cache_utils import LinearAttentionLayer

STATE_LAYERS = ("linear_attention", "conv", "hybrid")  # `hybrid` layers have keys and values, too
Place = tuple[int, Literal["conv", "recurrent"], int]
"""Layer, kind, number of the state in the layer."""
States = Mapping[Place, torch.Tensor]


class RowStates:
    """The states of all rows."""

    def __init__(self, kinds: Sequence[str], *, per_layer: int = 1) -> None:
        """`kinds` of layers; `per_layer`: states of a kind in a layer that has some."""
        self._kinds, self._per_layer = kinds, per_layer
        self._stored: dict[Place, torch.Tensor] = {}  # [R, ...]
        self._rows_B: torch.Tensor | None = None  # of this pass, if it works on copies of them
        self.layers: list[LinearAttentionLayer | None] = []  # of this pass
        self.begin_empty()

    @property
    def is_needed(self) -> bool:
        """Whether the model has such layers."""
        return any(kind in STATE_LAYERS for kind in self._kinds)

    def begin_empty(self) -> None:
        """Begin the next pass without any state."""
        self._rows_B = None
        self.layers = [
            LinearAttentionLayer(number_of_states=self._per_layer) if kind in STATE_LAYERS else None
            for kind in self._kinds
        ]

    def begin(self, rows_B: torch.Tensor | None, count: int) -> None:
        """Continue the next pass from these rows; None: from the first `count`."""
        self.begin_empty()
        self._rows_B = rows_B
        for (number, kind, index), stored in self._stored.items():
            layer = self.layers[number]
            assert layer is not None, "what is stored is of such a layer"
            states = stored[:count] if rows_B is None else stored.index_select(0, rows_B)
            layer.device, layer.dtype = states.device, states.dtype
            layer.has_previous_state[index] = True
            if kind == "conv":
                layer.conv_states[index], layer.conv_kernel_size[index] = states, states.shape[-1]
                layer.is_conv_states_initialized[index] = True
            else:
                layer.recurrent_states[index] = states
                layer.is_recurrent_states_initialized[index] = True

    def end(self, rows: int) -> None:
        """Store the states after the pass; `rows`: the number of allocated rows."""
        made = self.made()
        if not self._stored:  # no row had a state before
            for place, states in made.items():
                self._stored[place] = states.new_zeros(rows, *states.shape[1:])
                self._stored[place][: len(states)] = states
        elif self._rows_B is not None:
            for place, states in made.items():
                self._stored[place].index_copy_(0, self._rows_B, states)

    def made(self) -> dict[Place, torch.Tensor]:
        """The states after this pass, [B, ...]."""
        found: dict[Place, torch.Tensor] = {}
        for number, layer in enumerate(self.layers):
            for index in range(self._per_layer) if layer is not None else ():
                assert layer is not None
                conv, recurrent = layer.conv_states[index], layer.recurrent_states[index]
                if conv is not None:
                    found[number, "conv", index] = conv
                if recurrent is not None:
                    found[number, "recurrent", index] = recurrent
        return found

    def install(self, source: States, from_B: torch.Tensor, to_B: torch.Tensor, *, rows: int) -> None:
        """Copy the states of sequences `from_B` into rows `to_B`; `rows`: the number of allocated rows."""
        for place, states in source.items():
            if place not in self._stored:
                self._stored[place] = states.new_zeros(rows, *states.shape[1:])
            self._stored[place].index_copy_(0, to_B, states.index_select(0, from_B))

    def empty(self, row: int) -> None:
        """Clear the states of a row, for a generation without earlier tokens."""
        for stored in self._stored.values():
            stored[row : row + 1] = 0  # a row that is not allocated yet begins with zeros

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for stored in self._stored.values():
            stored[target] = stored[source]

    def swap(self, one: int, other: int) -> None:
        """Exchange two rows."""
        for stored in self._stored.values():
            stored[[one, other]] = stored[[other, one]]

    def reserve(self, rows: int) -> None:
        """Allocate this many rows, keeping their content."""
        for place, stored in self._stored.items():
            self._stored[place] = stored.new_zeros(rows, *stored.shape[1:])
            self._stored[place][: len(stored)] = stored

    def clear(self) -> None:
        """Free the memory of all rows."""
        self._stored = {}
        self.begin_empty()

    def tensors(self) -> Iterator[torch.Tensor]:
        """The states, as they are stored."""
        return iter(self._stored.values())
