"""Which running trajectories to take from where they are: `migrate(instances, running, settings) -> moves`.

`running` maps the index of an instance to the trajectories on it. A move interrupts one trajectory; it keeps
its tokens and its deadline, and goes on where routing puts it, which costs a prefill of what it has. So a
move is made only when the time that it saves is longer.
"""

from collections.abc import Callable, Mapping, Sequence

from strategies.cost_model import prefill_s, step_latency, throughput
from strategies.views import InstanceView, Move, RunningView, Settings

Running = Mapping[int, Sequence[RunningView]]
Migration = Callable[[Sequence[InstanceView], Running, Settings], list[Move]]

MOVES_PER_PAIR = 4  # at one decision: the next snapshot says what they did
WORTH = 2.0  # predicted saving over predicted cost: predictions of length are wrong by about this factor


def none(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[Move]:
    """Nothing moves but by weight updates and lost workers."""
    del instances, running, settings
    return []


def by_gap(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[Move]:
    """From the instance with the highest throughput to the one with the lowest, when one is over
    `phi_throughput` times the other and nothing waits at the lower.

    Source: StaleFlow (arXiv 2601.12784), migration; phi_throughput read as a ratio. Victims are single
    trajectories, shortest first (the cheapest to prefill), and only to the same or a newer version.
    """
    idle = [i for i in instances if not i.waiting]
    if len(instances) < 2 or not idle:
        return []
    rates = {i.index: throughput(i.coefficients, i.running, i.resident_tokens) for i in instances}
    low = min(idle, key=lambda i: (rates[i.index], i.index))
    sources = [i for i in instances if i.index != low.index and i.policy_version <= low.policy_version]
    if not sources:
        return []
    high = max(sources, key=lambda i: (rates[i.index], -i.index))
    if rates[high.index] <= settings.phi_throughput * max(rates[low.index], 1e-9) or high.running < 2:
        return []
    wanted = min(MOVES_PER_PAIR, (high.running - low.running) // 2)
    victims = sorted(running[high.index], key=lambda t: (t.resident_tokens, t.index))
    moves = [Move(v.index, low.index) for v in victims if saving_s(v, high, low) > 0]
    return moves[:wanted]


def by_benefit(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[Move]:
    """`by_gap`, and trajectories that the next batch waits for move to where they end soonest.

    A trajectory whose group is due now is worth moving when it saves more than WORTH times the prefill. One
    move per source and target at a decision, longest remaining first: what the batch waits for is the last
    to end.
    """
    moves = by_gap(instances, running, settings)
    loads = {i.index: i for i in instances}
    urgent = sorted(
        ((t, i.index) for i in instances if i.urgent for t in running[i.index] if t.slack == 0),
        key=lambda pair: (-pair[0].remaining_tokens, pair[0].index),
    )
    taken = {move.trajectory for move in moves}
    for trajectory, at in urgent[:MOVES_PER_PAIR]:
        if trajectory.index in taken:
            continue
        source = loads[at]
        targets = [
            i
            for i in loads.values()
            if i.index != at
            and i.policy_version >= trajectory.min_version
            and not i.waiting
            and fits(trajectory, i)
        ]
        best = max(targets, key=lambda i: (saving_s(trajectory, source, i), -i.index), default=None)
        if best is not None and saving_s(trajectory, source, best) > 0:
            moves.append(Move(trajectory.index, best.index))
            loads[at], loads[best.index] = _moved(trajectory, source, best)
    return moves


def fits(trajectory: RunningView, instance: InstanceView) -> bool:
    """Whether it could start there at once."""
    return (
        instance.running < instance.capacity
        and instance.resident_tokens + trajectory.resident_tokens <= instance.kv_tokens
    )


def saving_s(trajectory: RunningView, source: InstanceView, target: InstanceView) -> float:
    """Seconds by which the trajectory would end sooner on the target, less WORTH times the prefill."""
    here = step_latency(source.coefficients, max(1, source.running), source.resident_tokens)
    there = step_latency(
        target.coefficients, target.running + 1, target.resident_tokens + trajectory.resident_tokens
    )
    cost = prefill_s(target.coefficients, trajectory.resident_tokens)
    return (here - there) * trajectory.remaining_tokens - WORTH * cost


def _moved(
    trajectory: RunningView, source: InstanceView, target: InstanceView
) -> tuple[InstanceView, InstanceView]:
    tokens = trajectory.resident_tokens
    return (
        source._replace(running=source.running - 1, resident_tokens=source.resident_tokens - tokens),
        target._replace(running=target.running + 1, resident_tokens=target.resident_tokens + tokens),
    )


MIGRATIONS: dict[str, Migration] = {"none": none, "gap": by_gap, "benefit": by_benefit}
