"""Where to run the next trajectory: `route(work, instances, settings) -> index | None`.

Every function gets only instances that may run the work (version, readiness) and returns the index of its
choice, or None to leave the work queued. `has_room` is the hard limit that all of them keep: work starts at
once or stays with the controller, it never queues inside an engine.

A function may carry an attribute `order`: a key of an instance alone, smallest first, such that an instance
far down this order is not chosen. The core then shows it only the first few of each version (and those that
hold a sibling), which makes a decision cost the same on 16 instances and on 1,024.
"""

from collections.abc import Callable, Sequence
from typing import Any

from strategies.cost_model import ideal_gain, marginal_gain, step_latency
from strategies.views import InstanceView, Settings, WorkView

OLDER = 0.7  # worth of a gain under each version older, for a fresh group: its deadline comes one step sooner
NEWER = 0.95  # and under each version newer than it needs, for begun work

Routing = Callable[[WorkView, Sequence[InstanceView], Settings], int | None]
Order = Callable[[InstanceView, Settings], Any]


def has_room(work: WorkView, instance: InstanceView) -> bool:
    """Whether the work can start there at once: a free row, and KV for the tokens that it has."""
    fits = instance.resident_tokens + work.resident_tokens <= instance.kv_tokens
    return instance.running < instance.capacity and fits


def load(instance: InstanceView, settings: Settings) -> int:
    """Tokens that the instance reads per step: those resident now, or the mean until its trajectories end."""
    if not settings.uses_prediction:
        return instance.resident_tokens
    return (instance.resident_tokens + instance.expected_tokens) // 2


def size(work: WorkView, settings: Settings) -> int:
    """The same for a trajectory."""
    if not settings.uses_prediction or not work.expected_tokens:
        return work.resident_tokens
    return (work.resident_tokens + work.expected_tokens) // 2


def by_marginal_gain(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance whose throughput grows most, if by at least mu times what an idle one would gain.

    Fresh work prefers newer versions, begun work the oldest that it may use, which keeps new weights for new
    groups; but neither so much that a few instances get it all. Equal gains go to an instance that holds a
    sibling, whose prompt is prefilled already. With length prediction, an instance is judged by the tokens
    that it will hold on average, not by those of now. Source: StaleFlow (arXiv 2601.12784),
    throughput-optimal routing with threshold mu.
    """
    length = size(work, settings)
    best: tuple[float, bool, int] | None = None
    for instance in instances:
        if not has_room(work, instance):
            continue
        gain = _gain(instance, length, settings)
        if instance.running and gain < settings.mu * ideal_gain(instance.coefficients, length):
            continue
        behind = settings.newest_version - instance.policy_version
        worth = gain * (
            OLDER**behind if work.is_fresh else NEWER ** (instance.policy_version - work.min_version)
        )
        key = (worth, instance.has_sibling, -instance.index)
        best = key if best is None or key > best else best
    return None if best is None else -best[2]


def _gain(instance: InstanceView, length: int, settings: Settings) -> float:
    """Tokens/s that the trajectory adds, less what it takes from urgent ones, weighted by `urgency`."""
    c, n, tokens = instance.coefficients, instance.running, load(instance, settings)
    gain = marginal_gain(c, n, tokens, length)
    if instance.urgent and settings.urgency and settings.is_tail_bound:
        slower = 1 / step_latency(c, n, tokens) - 1 / step_latency(c, n + 1, tokens + length)
        gain -= settings.urgency * instance.urgent * slower
    return gain


def _gain_order(instance: InstanceView, settings: Settings) -> float:
    length = settings.typical_tokens
    return -_gain(instance, length, settings)


def by_least_requests(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance with the fewest running trajectories (the default of PSRL, the released StaleFlow
    code)."""
    del settings
    candidates = [i for i in instances if has_room(work, i)]
    return min(candidates, key=lambda i: (i.running, i.index)).index if candidates else None


def by_group(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance that holds a sibling, so that the prompt is prefilled once; the first member, and any that
    finds its siblings' instance full, goes where throughput grows most."""
    home = [i for i in instances if i.has_sibling and has_room(work, i)]
    return by_marginal_gain(work, home or instances, settings)


def round_robin(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """Groups in turn, siblings together (AReaL's rule); the next one over if that instance is full."""
    del settings
    for step in range(len(instances)):
        instance = instances[(work.group + step) % len(instances)]
        if has_room(work, instance):
            return instance.index
    return None


def _fewest(instance: InstanceView, settings: Settings) -> int:
    del settings
    return instance.running


by_marginal_gain.order = _gain_order  # type: ignore[attr-defined]
by_group.order = _gain_order  # type: ignore[attr-defined]
by_least_requests.order = _fewest  # type: ignore[attr-defined]

ROUTINGS: dict[str, Routing] = {
    "marginal_gain": by_marginal_gain,
    "least_requests": by_least_requests,
    "group_affine": by_group,
    "round_robin": round_robin,
}
