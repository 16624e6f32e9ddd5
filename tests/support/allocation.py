"""Counts bytes of tensors where they are allocated, temporaries inside of operators included."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Allocation(NamedTuple):
    """Bytes on the CPU against what was allocated before."""

    peak: int
    kept: int  # at the end
    largest: int  # single allocation


def allocation(call: Callable[[], object]) -> Allocation:
    """What a call allocates and frees, in all threads. Its result is dropped before the count ends."""
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
