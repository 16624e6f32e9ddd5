"""Where to run the next trajectory: `route(work, instances, settings) -> index | None`.

Every function gets only instances that may run the work (version, readiness) and returns the index of its
choice, or None to leave the work queued. `has_room` is the hard limit that all of them keep: work starts at
once or stays with the controller, it never queues inside an engine.
"""

from collections.abc import Callable, Sequence

from strategies.cost_model import QWEN_7B_TP1, ideal_gain, marginal_gain
from strategies.views import InstanceView, Settings, WorkView

Routing = Callable[[WorkView, Sequence[InstanceView], Settings], int | None]


def has_room(work: WorkView, instance: InstanceView) -> bool:
    """Whether the work can start there at once: a free row, and KV for the tokens that it has."""
    fits = instance.resident_tokens + work.resident_tokens <= instance.kv_tokens
    return instance.running < instance.capacity and fits


def by_marginal_gain(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance whose throughput grows most, if by at least mu times what an idle one would gain.

    Fresh work prefers the newest version, begun work the oldest that it may use, which keeps new weights for
    new groups. Equal gains go to an instance that holds a sibling, whose prompt is prefilled already.
    Source: StaleFlow (arXiv 2601.12784), throughput-optimal routing with threshold mu.
    """
    cut = settings.mu * ideal_gain(QWEN_7B_TP1, work.resident_tokens)
    best: tuple[int, float, bool, int] | None = None
    for instance in instances:
        if not has_room(work, instance):
            continue
        gain = marginal_gain(QWEN_7B_TP1, instance.running, instance.resident_tokens, work.resident_tokens)
        if gain < cut:
            continue
        age = instance.policy_version if work.is_fresh else -instance.policy_version
        key = (age, gain, work.group in instance.groups, -instance.index)
        best = key if best is None or key > best else best
    return None if best is None else -best[3]


def by_least_requests(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance with the fewest running trajectories (the default of PSRL, the released StaleFlow
    code)."""
    del settings
    candidates = [i for i in instances if has_room(work, i)]
    return min(candidates, key=lambda i: (i.running, i.index)).index if candidates else None


def round_robin(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """Groups in turn, siblings together (AReaL's rule); the next one over if that instance is full."""
    del settings
    for step in range(len(instances)):
        instance = instances[(work.group + step) % len(instances)]
        if has_room(work, instance):
            return instance.index
    return None


ROUTINGS: dict[str, Routing] = {
    "marginal_gain": by_marginal_gain,
    "least_requests": by_least_requests,
    "round_robin": round_robin,
}
