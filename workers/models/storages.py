"""Memory of tensors, freed and taken again in place: parameters, optimizer and hooks keep what they refer to.

Invariant: a tensor keeps its shape, type and identity while its memory is gone; until it is taken again
nothing may compute with it.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor


class OnDevice(NamedTuple):
    """What a worker had, and has left, on a device that it shares."""

    peak_bytes: int
    left_bytes: int


def storages_of(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Their memory on this rank, each piece once, in order."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        found.setdefault(storage._cdata, storage)
    return list(found.values())


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of their memory now."""
    return sum(storage.nbytes() for storage in storages_of(tensors))


def peak_of(device: torch.device, counted: int) -> int:
    """The most bytes on the device since the last call: all that was allocated on a GPU, else `counted`."""
    if device.type != "cuda":
        return counted
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def left_on(device: torch.device, counted: int) -> int:
    """Bytes that are left on the device: all that is allocated on a GPU, else `counted`."""
    if device.type != "cuda":
        return counted
    torch.cuda.empty_cache()  # else other processes cannot have what was freed
    return torch.cuda.memory_allocated(device)
