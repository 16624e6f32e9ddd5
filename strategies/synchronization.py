"""Which instances pull the newest version now: `choose(instances, settings) -> ids`.

Every function gets the instances that hold an older version and are not pulling. A pull blocks only its own
instance; the trajectories there are interrupted first and go on under the new weights.
"""

from collections.abc import Callable, Sequence

from strategies.cost_model import throughput
from strategies.views import Settings, SyncView

CHEAP = 0.5  # of the time between two versions: a pull that takes less is made at once

Synchronization = Callable[[Sequence[SyncView], Settings], list[int]]


def greedy(instances: Sequence[SyncView], settings: Settings) -> list[int]:
    """All instances, as soon as a version is published (the default of PSRL, the released StaleFlow code)."""
    if settings.guard and not settings.is_batch_ready:
        return []
    return [instance.id for instance in instances]


def by_gain(instances: Sequence[SyncView], settings: Settings) -> list[int]:
    """Instances for which new weights are worth the cost of the pull.

    An idle instance pulls at once, and so does one whose pull takes less than half of the time between two
    versions: put off, it has to prefill again all the same, a version later, and meanwhile fresh groups start
    under old weights and are due sooner. Other instances pull if fresh trajectories wait that they could take
    at the newest version only, and the tokens which these would add until the next version is out exceed
    those lost by pulling and by prefilling again, also for later turns of agents. The cheapest come first,
    and each takes its share of the waiting trajectories. Source: our reading of the paper's marginal-gain
    rule (the release has it commented out).
    """
    if settings.guard and not settings.is_batch_ready:
        return []
    cheap_s = CHEAP * settings.horizon_s
    chosen = [i.id for i in instances if not i.running or i.pull_s + i.restart_s <= cheap_s]
    waiting = settings.fresh
    if waiting <= 0:
        return chosen
    busy = [i for i in instances if i.running and i.pull_s + i.restart_s > cheap_s]
    dear = [(loss(i), i.running, i.id, i) for i in busy]
    share = -(-waiting // len(dear)) if dear else 0
    for lost, _, _, instance in sorted(dear):
        room = instance.capacity - instance.running
        by_kv = (instance.kv_tokens - instance.resident_tokens) // max(1, settings.typical_tokens)
        taken = min(share, waiting, room, by_kv)
        if taken <= 0:
            continue
        if gain(instance, taken, settings) > lost:
            chosen.append(instance.id)
            waiting -= taken
    return chosen


def gain(instance: SyncView, taken: int, settings: Settings) -> float:
    """Tokens that `taken` fresh trajectories would add on the instance until the next version is out."""
    c, n, tokens = instance.coefficients, instance.running, instance.resident_tokens
    more = throughput(c, n + taken, tokens + taken * settings.typical_tokens) - throughput(c, n, tokens)
    return more * settings.horizon_s


def loss(instance: SyncView) -> float:
    """Tokens that the instance does not generate while it pulls and prefills again."""
    rate = throughput(instance.coefficients, instance.running, instance.resident_tokens)
    return rate * (instance.pull_s + instance.restart_s)


def by_status(instances: Sequence[SyncView], settings: Settings) -> list[int]:
    """Instances that have few trajectories left.

    No work waits in the engine, no queued work could still run at the old version, and the indicator is at or
    under its threshold. Indicators: `requests` (running trajectories), `throughput` (tokens/s), `kv` (share
    of the KV cache in use). Source: PSRL, status-based synchronization.
    """
    if settings.guard and not settings.is_batch_ready:
        return []
    return [
        instance.id
        for instance in instances
        if instance.waiting == 0
        and instance.useful == 0
        and indicator(instance, settings.indicator) <= settings.indicator_threshold
    ]


def indicator(instance: SyncView, name: str) -> float:
    """The load of an instance, in the unit that `name` implies. Raises: KeyError for an unknown name."""
    values = {
        "requests": float(instance.running),
        "throughput": throughput(instance.coefficients, instance.running, instance.resident_tokens),
        "kv": instance.resident_tokens / max(1, instance.kv_tokens),
    }
    return values[name]


def every_few(instances: Sequence[SyncView], settings: Settings) -> list[int]:
    """All instances, but only at every `sync_steps`-th version (veRL, fully asynchronous)."""
    if settings.newest_version % settings.sync_steps:
        return [i.id for i in instances if i.policy_version < 0]
    return greedy(instances, settings)


SYNCHRONIZATIONS: dict[str, Synchronization] = {
    "gain": by_gain,
    "greedy": greedy,
    "status": by_status,
    "every_few": every_few,
}
