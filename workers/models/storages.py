"""Frees and restores the memory of tensors in place: parameters, optimizer and hooks keep their references.

Invariant: a tensor keeps its shape, type and identity while its memory is freed; nothing may compute with it
until its memory is restored.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor


class OnDevice(NamedTuple):
    """A worker's memory on a device that it shares: its peak, and what is left after release."""

    peak_bytes: int
    left_bytes: int


def storages_of(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages of tensors on this rank, each once, in order."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        found.setdefault(storage._cdata, storage)
    return list(found.values())


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The current bytes of the tensors' storages."""
    return sum(storage.nbytes() for storage in storages_of(tensors))


def peak_of(device: torch.device, counted: int) -> int:
    """The most bytes on the device since the last call: all that was allocated on a GPU, else `counted`."""
    if device.type != "cuda":
        return counted
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def left_on(device: torch.device, counted: int) -> int:
    """Bytes left on the device: all allocated bytes on a GPU, else `counted`."""
    if device.type != "cuda":
        return counted
    torch.cuda.empty_cache()  # else other processes cannot use freed memory
    return torch.cuda.memory_allocated(device)
