"""Where to run the next trajectory: `choose(work, instances, settings) -> id | None`.

Every function gets only instances that may run the work (version, readiness) and returns the id of its
choice, or None to leave the work queued. `has_room` is the hard limit that all of them keep: work starts at
once or stays with the controller, it never queues inside an engine.

A `Routing` may have an `order` beside its `choose`: a sort key of an instance alone, smallest first, such
that instances far down this order are not chosen. The core then shows `choose` only the first few of each
version (and those that hold a sibling), so a decision costs the same on 16 instances and on 1,024.

A built-in routing may have a `weigh` too: the worth of the work on one instance with room for it, or None if
it should not start there. Then `choose` takes the largest worth, among equals an instance that holds a
sibling, among these the first; so for siblings, which are alike, the core weighs again only what has changed
in between.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.cost_model import ideal_gain, marginal_gain, step_latency
from strategies.views import InstanceView, Settings, WorkView

OLDER = 0.7  # factor per older version, for fresh work: its deadline comes one step sooner
NEWER = 0.95  # factor per version newer than needed, for begun work

Choose = Callable[[WorkView, Sequence[InstanceView], Settings], int | None]
Order = Callable[[InstanceView, Settings], Any]  # a number or a tuple, used only for comparison
Weigh = Callable[[WorkView, Settings], Callable[[InstanceView], float | None]]
"""The returned function is called for instances with room.

It depends neither on the group of the work nor on whether the instance holds a sibling.
"""


@dataclass(frozen=True)
class Routing:
    """A routing rule: its choice, and optionally an order and a weight."""

    choose: Choose
    order: Order | None = None
    weigh: Weigh | None = None


def has_room(work: WorkView, instance: InstanceView) -> bool:
    """Whether the work can start there at once: a free row, and KV room for its tokens."""
    fits = instance.resident_tokens + work.resident_tokens <= instance.kv_tokens
    return instance.running < instance.capacity and fits


def load(instance: InstanceView, settings: Settings) -> int:
    """Tokens that the instance reads per step: those resident now, or the mean until its trajectories end."""
    if not settings.uses_prediction:
        return instance.resident_tokens
    return (instance.resident_tokens + instance.expected_tokens) // 2


def size(work: WorkView, settings: Settings) -> int:
    """Tokens of the trajectory: those now, or the mean until its end, as in `load`."""
    if not settings.uses_prediction or not work.expected_tokens:
        return work.resident_tokens
    return (work.resident_tokens + work.expected_tokens) // 2


def by_marginal_gain(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance whose throughput grows most until the next version is out.

    It is chosen only where throughput grows now by at least mu times what an idle instance would gain (with
    mu = 0, wherever there is room). Where a pull sends back all that runs (`keep_kv: false`), only fresh work
    is kept back so: what has begun is due sooner.

    Fresh work prefers newer versions, begun work the oldest that it may use, which keeps new weights for new
    groups; but neither so much that a few instances get it all. A turn of an agent counts what its prefill
    takes elsewhere than at its home (`moving_loss`). Equal gains go to an instance that holds a sibling,
    whose prompt is prefilled already. With length prediction, an instance is judged by those that
    will run there, not by those of now. Source: StaleFlow (arXiv 2601.12784), throughput-optimal routing with
    threshold mu; looking ahead is ours.
    """
    best: tuple[float, bool, int] | None = None
    worth_on = weigh_gain(work, settings)
    for instance in instances:
        worth = worth_on(instance) if has_room(work, instance) else None
        if worth is not None:
            key = (worth, instance.has_sibling, -instance.id)
            best = key if best is None or key > best else best
    return None if best is None else -best[2]


def weigh_gain(work: WorkView, settings: Settings) -> Callable[[InstanceView], float | None]:
    """The worth that `by_marginal_gain` compares, in tokens/s on one instance; None for too little gain."""
    length, is_fresh, oldest, newest = (
        size(work, settings), work.is_fresh, work.min_version, settings.newest_version
    )  # fmt: skip
    is_gated = settings.mu > 0 and (is_fresh or settings.keeps_kv)
    home = work.home if work.held_tokens and settings.affinity else None

    def worth_on(instance: InstanceView) -> float | None:
        if is_gated and instance.running:
            least = settings.mu * ideal_gain(instance.coefficients, length)
            if gain_now(instance, length, settings) < least:
                return None
        version = instance.policy_version
        share = OLDER ** (newest - version) if is_fresh else NEWER ** (version - oldest)
        worth = lasting_gain(instance, length, settings) * share
        if home is not None and instance.id != home:
            worth -= moving_loss(work, instance)
        return worth

    return worth_on


def moving_loss(work: WorkView, instance: InstanceView) -> float:
    """Tokens/s that an instance loses by prefilling tokens whose KV the home of the work holds.

    The prefill stops decoding once; that is spread over the predicted rest of the episode, for all of which
    the trajectory may then stay.
    """
    c, n, whole = instance.coefficients, instance.running + 1, work.resident_tokens
    # prefill_s, step_latency and max are inlined: every turn calls this six times
    least, other_b, other_k, attention_b, attention_k, base, slope, square = c
    new, rest, other = whole - work.held_tokens, work.expected_tokens - whole, other_b + other_k * n
    extra_s = (base + (slope + square * whole) * whole) - (base + (slope + square * new) * new)
    step_s = (
        attention_b + attention_k * (instance.resident_tokens + whole) + (other if other > least else least)
    )
    return n / step_s * extra_s / ((rest if rest > 1 else 1) * step_s + extra_s)


def lasting_gain(instance: InstanceView, length: int, settings: Settings) -> float:
    """Tokens/s that a trajectory adds to an instance on average until the next version is out.

    Work comes in bursts, a batch with each version. Trajectories that are about to end leave an instance idle
    until the next burst, however crowded it is now, and those far from their end crowd it for long; so
    running ones count by the share of that time for which they are expected to stay.
    """
    c, running, resident = instance.coefficients, instance.running, instance.resident_tokens
    if not running or not settings.uses_prediction:
        return marginal_gain(c, running, resident, length)
    # step_latency, marginal_gain, max and min are inlined: every route calls this six times
    least, other_b, other_k, base, slope = c[:5]
    other = other_b + other_k * running
    step_s = base + slope * resident + (other if other > least else least)
    reach = settings.horizon_s / step_s  # tokens of each
    left, staying, before = instance.expected_tokens - resident, 0.0, 0.0
    if left > 0:
        staying = left / (reach if reach > 1.0 else 1.0)
        staying = staying if staying < running else running
    tokens = staying * settings.typical_tokens
    if staying:
        other = other_b + other_k * staying
        before = staying / (base + slope * tokens + (other if other > least else least))
    other = other_b + other_k * (staying + 1)
    return (staying + 1) / (base + slope * (tokens + length) + (other if other > least else least)) - before


def gain_now(instance: InstanceView, length: int, settings: Settings) -> float:
    """Tokens/s that the trajectory adds, less the loss of urgent trajectories, weighted by `urgency`."""
    c, n, tokens = instance.coefficients, instance.running, load(instance, settings)
    gain = marginal_gain(c, n, tokens, length)
    if instance.urgent and settings.urgency and settings.is_tail_bound:
        slower = 1 / step_latency(c, n, tokens) - 1 / step_latency(c, n + 1, tokens + length)
        gain -= settings.urgency * instance.urgent * slower
    return gain


def _gain_order(instance: InstanceView, settings: Settings) -> float:
    return -lasting_gain(instance, settings.typical_tokens, settings)


def by_least_requests(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance with the fewest running trajectories.

    Source: the default of PSRL, the released StaleFlow code.
    """
    del settings
    candidates = [i for i in instances if has_room(work, i)]
    return min(candidates, key=lambda i: (i.running, i.id)).id if candidates else None


def by_group(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """The instance that holds a sibling, so that the prompt is prefilled once.

    The first member, or a member whose siblings' instances are full, goes where throughput grows most.
    """
    home = [i for i in instances if i.has_sibling and has_room(work, i)]
    return by_marginal_gain(work, home or instances, settings)


def round_robin(work: WorkView, instances: Sequence[InstanceView], settings: Settings) -> int | None:
    """Groups in turn, siblings together (AReaL's rule); the next one over if that instance is full."""
    del settings
    for step in range(len(instances)):
        instance = instances[(work.group + step) % len(instances)]
        if has_room(work, instance):
            return instance.id
    return None


def _fewest(instance: InstanceView, settings: Settings) -> int:
    del settings
    return instance.running


ROUTINGS: dict[str, Routing] = {
    "marginal_gain": Routing(by_marginal_gain, _gain_order, weigh_gain),
    "least_requests": Routing(by_least_requests, _fewest),
    "group_affine": Routing(by_group, _gain_order),
    "round_robin": Routing(round_robin),
}
