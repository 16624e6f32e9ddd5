"""Copies whole tensors from host memory into a version, any range of the version's bytes at a time.

Invariants: nothing is written outside of the range; several threads may copy ranges at once; dtypes are
converted during the copy. No item is cut if ranges end at multiples of 8 bytes, as wide items come first.
"""

import mmap
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors

from workers.weights.manifest import Layout

SERIAL_ITEMS = 1 << 15  # torch copies more with several threads of its own; the callers are several already


class FlatCopy:
    """Copies tensors to their places.

    Everything reusable is made once: after a copy of 1 MiB, a few calls of torch are out of the cache, and
    took a third as long as the copy.
    """

    def __init__(
        self,
        mapped: mmap.mmap,
        layout: Layout,
        sources: list[torch.Tensor],
        *,
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        """`sources`: contiguous each, in the layout's order; `dtypes`: torch's, by their names."""
        self._sources = sources
        self._entries = list(layout.entries.values())
        self._starts = [entry.start for entry in self._entries]
        self._targets = {
            name: _items(mapped, layout, dtypes[name]) for name in {entry.dtype for entry in self._entries}
        }
        self._data = np.frombuffer(mapped, np.uint8, layout.data_bytes, layout.header_bytes)
        self._same: dict[int, np.ndarray] = {}  # bytes of sources that need no conversion, by place

    def __call__(self, begin: int, end: int) -> None:
        """Write the bytes from `begin` to `end` of the data."""
        place = bisect_right(self._starts, begin) - 1
        if (same := self._same.get(place)) is not None and end <= (start := self._starts[place]) + len(same):
            np.copyto(self._data[begin:end], same[begin - start : end - start])
            return
        while place < len(self._starts) and self._starts[place] < end:
            place = self._copy_whole(place, begin, end) or self._copy_part(place, begin, end)

    def _copy_whole(self, place: int, begin: int, end: int) -> int | None:
        """Copy the adjacent small tensors of one dtype; returns the place after them, None without any."""
        start, kind, last = self._starts[place], self._entries[place].dtype, place
        target = self._targets[kind]
        at, small = start, SERIAL_ITEMS * target.itemsize
        while start >= begin and last < len(self._entries):
            size = self._entries[last].size
            if self._entries[last].dtype != kind or size > small or at + size > end:
                break
            last, at = last + 1, at + size
        if last == place:
            return None
        with torch.no_grad():  # two calls: a few hundred took longer than what they copied
            flat = _flatten_dense_tensors(self._sources[place:last])
        _copy_serially(_cut(target, start, at), flat)
        return last

    def _copy_part(self, place: int, begin: int, end: int) -> int:
        """Copy the part of one tensor within the range; returns the place after it."""
        entry, source = self._entries[place], self._sources[place]
        begin, end = max(begin, entry.start), min(end, entry.start + entry.size)
        target = self._targets[entry.dtype]
        if source.dtype == target.dtype:
            if place not in self._same:
                self._same[place] = source.detach().view(-1).view(torch.uint8).numpy()
            np.copyto(self._data[begin:end], self._same[place][begin - entry.start : end - entry.start])
            return place + 1
        target = _cut(target, begin, end)
        row, first = source.detach().view(-1), (begin - entry.start) // target.itemsize
        _copy_serially(target, row.narrow(0, first, len(target)))
        return place + 1


@torch.no_grad()
def _copy_serially(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy one row to another, in this thread."""
    for to, part in zip(target.split(SERIAL_ITEMS), source.split(SERIAL_ITEMS), strict=True):
        to.copy_(part)


def _items(mapped: mmap.mmap, layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """The data as items of one dtype."""
    count = layout.data_bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=layout.header_bytes)


def _cut(items: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    return items[begin // items.itemsize : end // items.itemsize]
