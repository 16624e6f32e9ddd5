"""Whole tensors in host memory on their way into a version, any range of its data at a time.

Invariants: nothing is written outside of the range; ranges may be copied by several threads at once; a dtype
is converted on the way. No item is cut where a range ends at a multiple of 8 bytes, as wide items lie first.
"""

import mmap
from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
import torch
from torch._utils import _flatten_dense_tensors

from workers.weights.manifest import Layout

SERIAL_ITEMS = 1 << 15  # torch shares the copy of more of them among threads of its own; here are enough


class FlatCopy:
    """Copies tensors to their places.

    What can be made once is: behind a copy of 1 MiB, a few calls of torch are out of the cache, and took a
    third as long as the copy.
    """

    def __init__(
        self,
        mapped: mmap.mmap,
        layout: Layout,
        sources: list[torch.Tensor],
        *,
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        """`sources`: in one piece each, in the layout's order; `dtypes`: torch's, by their names."""
        self._sources = sources
        self._entries = list(layout.entries.values())
        self._starts = [entry.start for entry in self._entries]
        self._targets = {
            name: _items(mapped, layout, dtypes[name]) for name in {entry.dtype for entry in self._entries}
        }
        self._data = np.frombuffer(mapped, np.uint8, layout.data_bytes, layout.header_bytes)
        self._same: dict[int, np.ndarray] = {}  # bytes of sources that need no conversion, by place

    def __call__(self, begin: int, end: int) -> None:
        """Write these bytes of the data."""
        place = bisect_right(self._starts, begin) - 1
        if (same := self._same.get(place)) is not None and end <= (start := self._starts[place]) + len(same):
            np.copyto(self._data[begin:end], same[begin - start : end - start])
            return
        while place < len(self._starts) and self._starts[place] < end:
            place = self._copy_whole(place, begin, end) or self._copy_part(place, begin, end)

    def _copy_whole(self, place: int, begin: int, end: int) -> int | None:
        """Copy the small tensors of one dtype that lie here side by side; the place behind them."""
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
        """Copy what lies in the range of one tensor; the place behind it."""
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
