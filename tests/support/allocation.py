"""Counts bytes of tensors where they are allocated."""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Allocation(NamedTuple):
    """Bytes on the CPU against what was allocated before."""

    peak: int
    kept: int  # at the end
    largest: int  # single allocation


def allocation(call: Callable[[], object]) -> Allocation:
    """What a call allocates and frees in this thread, temporaries inside of operators included.

    Its result is dropped before the count ends. What gloo's threads free is not seen: see `live_bytes`.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [event for event in _events(profiled) if event.name() == "[memory]"]
    now = peak = largest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        assert event.device_type() == torch.autograd.DeviceType.CPU
        now += event.nbytes()
        peak, largest = max(peak, now), max(largest, event.nbytes())
    return Allocation(peak, now, largest)


def _events(profiled: profile) -> list:
    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    assert results is not None
    return results.events()


class _Live(TorchDispatchMode):
    """Follows the storages of all results, and looks at their sizes with every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, weakref.ref] = {}
        self.peak = 0

    def now(self) -> int:
        held = [storage() for storage in list(self.storages.values())]
        return sum(storage.nbytes() for storage in held if storage is not None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_iter(result):
            if isinstance(leaf, DTensor):  # made out of sight: what is whole is told by its shard
                leaf = leaf.to_local()
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                self._follow(leaf.untyped_storage())
        self.peak = max(self.peak, self.now())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        place = storage._cdata
        if place not in self.storages:
            self.storages[place] = weakref.ref(storage, lambda _: self.storages.pop(place, None))


def live_bytes(call: Callable[[], object]) -> Allocation:
    """Bytes of live tensors that a call makes, whoever frees them; what FSDP resizes counts as it is."""
    with _Live() as live:
        call()
        return Allocation(live.peak, live.now(), 0)
