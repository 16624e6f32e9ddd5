"""The KV cache of the embedded engine: one row per running generation, and prompts kept for siblings.

Invariants: row r holds the keys and values of its generation's first tokens from position 0 on, without gaps;
positions beyond are stale and masked by the reader. Rows and length are allocated by doubling, up to bounds.

Shapes: R rows, B sequences of one pass, L positions, H KV heads, D head size. Storage is [R, H, L, D]:
attention over [R, L, H, D] took twice as long (256 rows, 2 heads of 32, one CPU thread).
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from transformers import Cache

from workers.engines.torch.states import RowStates, States

LayerKv = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of one layer, each [B, H, L, D]."""


class Computed(NamedTuple):
    """The layers' content after some sequences, by layer number."""

    kv: Mapping[int, LayerKv]
    states: States  # of layers that have them

    def tensors(self) -> Iterator[torch.Tensor]:
        """All of its tensors."""
        return chain(chain.from_iterable(self.kv.values()), self.states.values())


class KvRows(Cache):
    """A transformers cache that either collects what a prefill computes, or appends tokens to rows."""

    def __init__(
        self, *, max_rows: int, max_length: int, kinds: Sequence[str] = (), per_layer: int = 1
    ) -> None:
        """`kinds` of the model's layers; `per_layer`: states in each layer that has some (`RowStates`)."""
        super().__init__(layers=[])
        self.states = RowStates(kinds, per_layer=per_layer)
        self._bounds = (max_rows, max_length)
        self._allocated = self._least = (min(8, max_rows), min(64, max_length))
        self._kv: dict[int, LayerKv] = {}
        self._collected: dict[int, LayerKv] | None = None
        self._rows_B: torch.Tensor | None = None  # of this pass; None: the first rows
        self._positions_BT = torch.empty(0, 0, dtype=torch.long)  # where the tokens of this pass go
        self._slots: dict[int, torch.Tensor] = {}  # the same as indices of [R * H * L], by H
        self._attended = 0  # positions that this pass reads

    def clear(self) -> None:
        """Free the memory of all rows."""
        self._allocated, self._kv, self._slots = self._least, {}, {}
        self.states.clear()

    def tensors(self) -> Iterator[torch.Tensor]:
        """Keys, values and states, as they are stored."""
        return chain(chain.from_iterable(self._kv.values()), self.states.tensors())

    def begin_prefill(self) -> None:
        """Make the next forward pass collect keys and values, attending only to its own input."""
        self._collected = {}
        self.states.begin_empty()
        self.layers = self.states.layers

    def end_prefill(self) -> Computed:
        """The keys, values and states from the forward pass since `begin_prefill`."""
        collected, self._collected = self._collected, None
        assert collected is not None
        return Computed(collected, self.states.made())

    def begin_decode(self, positions_B: torch.Tensor, *, attended: int) -> None:
        """Have the next pass write tokens at these positions of rows 0 to B, reading `attended` of each."""
        self._reserve(len(positions_B), attended)
        self._begin(None, positions_B[:, None], attended)

    def begin_extend(self, rows: list[int], positions_BT: torch.Tensor, *, attended: int) -> None:
        """Make the next pass write T tokens at these positions of each of these rows, reading `attended`."""
        self._reserve(max(rows) + 1, attended)
        self._begin(torch.tensor(rows, device=positions_BT.device), positions_BT, attended)

    def _begin(self, rows_B: torch.Tensor | None, positions_BT: torch.Tensor, attended: int) -> None:
        self._rows_B, self._positions_BT, self._attended = rows_B, positions_BT, attended
        self._slots = {}
        self.states.begin(rows_B, len(positions_BT))
        self.layers = self.states.layers

    def end(self) -> None:
        """End the last pass that was not a prefill."""
        self.states.end(self._allocated[0])

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ):
        """Called by the model's attention, with [B, H, T, D]; returns what to attend to, laid out alike."""
        if self._collected is not None:
            self._collected[layer_idx] = (key_states, value_states)
            return key_states, value_states
        if layer_idx not in self._kv:
            self._kv[layer_idx] = (self._empty(key_states), self._empty(value_states))
        count, heads = key_states.shape[:2]
        if heads not in self._slots:
            lines_RH = torch.arange(self._allocated[0] * heads, device=key_states.device).view(-1, heads)
            lines_BH = lines_RH[:count] if self._rows_B is None else lines_RH[self._rows_B]
            slots_BHT = lines_BH[:, :, None] * self._allocated[1] + self._positions_BT[:, None]
            self._slots[heads] = slots_BHT.view(-1)
        read = []
        for stored, new in zip(self._kv[layer_idx], (key_states, value_states), strict=True):
            size = stored.shape[-1]
            stored.view(-1, size).index_copy_(0, self._slots[heads], new.reshape(-1, size))
            seen = stored[:, :, : self._attended]
            read.append(seen[:count] if self._rows_B is None else seen.index_select(0, self._rows_B))
        return read[0], read[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before those of this pass; only models that do not get position_ids ask for it."""
        return 0 if self._collected is not None else self._attended - self._positions_BT.shape[1]

    @torch.inference_mode()
    def install(self, source: Computed, pairs: list[tuple[int, int]], *, length: int) -> None:
        """Copy the first `length` positions of sequences, and states, into rows; `pairs`: (sequence, row)."""
        self._reserve(max(row for _, row in pairs) + 1, length)
        if not self._kv:
            self._kv = {number: (self._empty(k), self._empty(v)) for number, (k, v) in source.kv.items()}
        from_B, to_B = torch.tensor(pairs, device=next(source.tensors()).device).unbind(1)
        for number, layer in self._kv.items():
            for stored, new in zip(layer, source.kv[number], strict=True):
                stored[:, :, :length].index_copy_(0, to_B, new[:, :, :length].index_select(0, from_B))
        self.states.install(source.states, from_B, to_B, rows=self._allocated[0])

    @torch.inference_mode()
    def move(self, source: int, target: int, *, length: int) -> None:
        """Copy the first `length` positions of one row, and its states, over another."""
        for layer in self._kv.values():
            for stored in layer:
                stored[target, :, :length] = stored[source, :, :length]
        self.states.move(source, target)

    @torch.inference_mode()
    def swap(self, one: int, other: int, *, length: int) -> None:
        """Exchange the first `length` positions of two rows, and their states."""
        for layer in self._kv.values():
            for stored in layer:
                stored[[one, other], :, :length] = stored[[other, one], :, :length]
        self.states.swap(one, other)

    def reserve_row(self, row: int) -> None:
        """Allocate this row."""
        self._reserve(row + 1, 1)

    def _reserve(self, rows: int, length: int) -> None:
        """Allocate this many rows and positions, keeping their content."""
        wanted = []
        for need, have, bound in zip((rows, length), self._allocated, self._bounds, strict=True):
            assert need <= bound, f"{need} rows or positions are more than the {bound} of this cache"
            wanted.append(have if need <= have else min(bound, max(need, 2 * have)))
        (old_rows, old_length), self._allocated = self._allocated, (wanted[0], wanted[1])
        if self._allocated == (old_rows, old_length):
            return
        for number, (keys, values) in self._kv.items():
            self._kv[number] = (self._empty(keys), self._empty(values))
            for stored, old in zip(self._kv[number], (keys, values), strict=True):
                stored[:old_rows, :, :old_length] = old
        self.states.reserve(wanted[0])

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        # zeros, because a masked position still enters the sum with weight 0, and 0 * NaN is NaN
        rows, length = self._allocated
        return states.new_zeros(rows, states.shape[1], length, states.shape[3])


class Prefix(NamedTuple):
    """The layers' content after one token sequence, keys and values [1, H, length, D]."""

    computed: Computed
    length: int


class PrefixCache:
    """Prompts' keys and values under the current weights, so that a later sibling needs no prefill.

    Holds at most `max_tokens`, but always the newest entry; the least recently used is removed first.
    """

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokens = 0
        self._entries: OrderedDict[bytes, Prefix] = OrderedDict()

    def get(self, name: bytes) -> Prefix | None:
        """The entry of this name, now the most recently used."""
        if name in self._entries:
            self._entries.move_to_end(name)
        return self._entries.get(name)

    @torch.inference_mode()
    def put(self, name: bytes, source: Computed, index: int, *, length: int) -> None:
        """Keep a copy of the first `length` positions of sequence `index` of `source`, under a new name."""
        assert name not in self._entries
        one = slice(index, index + 1)
        kv = {
            number: (keys[one, :, :length].clone(), values[one, :, :length].clone())
            for number, (keys, values) in source.kv.items()
        }
        states = {place: of[one].clone() for place, of in source.states.items()}
        self._entries[name] = Prefix(Computed(kv, states), length)
        self._tokens += length
        while self._tokens > self._max_tokens and len(self._entries) > 1:
            self._tokens -= self._entries.popitem(last=False)[1].length

    def tensors(self) -> Iterator[torch.Tensor]:
        """Keys, values and states of all entries."""
        return chain.from_iterable(prefix.computed.tensors() for prefix in self._entries.values())

    def clear(self) -> None:
        """Remove all entries: the weights changed."""
        self._entries.clear()
        self._tokens = 0
