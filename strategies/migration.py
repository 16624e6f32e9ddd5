"""Which running trajectories to move to another instance: `migrate(instances, running, settings) -> list`.

`running` maps the id of an instance to its trajectories. A move interrupts one trajectory; it keeps its
tokens and its deadline, and goes on where routing puts it, which costs a prefill of its tokens. So a move is
made only when it saves more time than that.
"""

from collections.abc import Callable, Mapping, Sequence

from strategies.cost_model import prefill_s, step_latency, throughput
from strategies.views import InstanceView, RunningView, Settings

Running = Mapping[int, Sequence[RunningView]]
Migration = Callable[[Sequence[InstanceView], Running, Settings], list[int]]

MOVES_PER_PAIR = 4  # per decision: the next snapshot shows their effect
MOVES_AT_ONCE = 4  # between the slowest and the fastest instance
UNEQUAL = 1.3  # ratio of step times from which moves are considered
SETTLED = 0.33  # share of its tokens that a trajectory generates on an instance before it moves again
WORTH = 4.0  # predicted saving over predicted cost: the prefill also holds up the target's trajectories


def none(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[int]:
    """Move nothing except after weight updates and lost workers."""
    del instances, running, settings
    return []


def by_gap(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[int]:
    """Move work from the instance with the highest throughput to the one with the lowest.

    This happens when the highest throughput is over `phi_throughput` times the lowest, and no work waits at
    the latter. Single trajectories move, shortest first (the cheapest to prefill), only to the same or a
    newer version, and only as many as have room there: an instance without a free row is no target, and what
    finds no room goes back to where it came from. Without such a gap, trajectories that gain most leave
    devices that are slower by themselves. Source: StaleFlow (arXiv 2601.12784), migration, with
    phi_throughput read as a ratio; the room and devices of several speeds are ours.
    """
    idle = [i for i in instances if not i.waiting and i.running < i.capacity]
    if len(instances) < 2 or not idle:
        return []
    rates = {i.id: throughput(i.coefficients, i.running, i.resident_tokens) for i in instances}
    low = min(idle, key=lambda i: (rates[i.id], i.id))
    sources = [i for i in instances if i.id != low.id and i.policy_version <= low.policy_version]
    if not sources:
        return []
    high = max(sources, key=lambda i: (rates[i.id], -i.id))
    if rates[high.id] <= settings.phi_throughput * max(rates[low.id], 1e-9) or high.running < 2:
        return _by_latency(instances, running, settings, _speed)
    wanted = min(MOVES_PER_PAIR, (high.running - low.running) // 2)
    victims = sorted(running[high.id], key=lambda t: (t.resident_tokens, t.id))
    return _that_fit([v for v in victims if saving_s(v, high, low) > 0][:wanted], high, low)


def _that_fit(victims: Sequence[RunningView], source: InstanceView, target: InstanceView) -> list[int]:
    """The ids of the first of these that have room on the target together."""
    moves: list[int] = []
    for victim in victims:
        if not fits(victim, target):
            break
        moves.append(victim.id)
        source, target = _moved(victim, source, target)
    return moves


def by_benefit(instances: Sequence[InstanceView], running: Running, settings: Settings) -> list[int]:
    """`by_gap`, and moves from the slowest instance to the fastest if a trajectory ends much sooner there.

    Under a tight bound the longest responses decide the speed of a run, and the tokens of the trajectories
    beside them slow them down.
    """
    moves = by_gap(instances, running, settings)
    return moves or _by_latency(instances, running, settings, _latency)


def _by_latency(
    instances: Sequence[InstanceView],
    running: Running,
    settings: Settings,
    latency: Callable[[InstanceView], float],
) -> list[int]:
    """Move from the instance with the longest step to that with the shortest, at most MOVES_AT_ONCE.

    A trajectory is worth moving if it saves more than WORTH times the prefill; the one that saves most goes
    first.
    """
    if len(instances) < 2 or not settings.is_tail_bound:
        return []
    loads = {i.id: i for i in instances}
    moves: list[int] = []
    taken: set[int] = set()
    for _ in range(MOVES_AT_ONCE):
        source = max(loads.values(), key=lambda i: (latency(i), _latency(i), i.id))
        target = min(loads.values(), key=lambda i: (latency(i), _latency(i), i.id))
        if source.running < 2 or target.waiting or latency(source) < UNEQUAL * latency(target):
            break
        candidates = [
            t
            for t in running[source.id]
            if t.id not in taken
            and t.min_version <= target.policy_version
            and t.here_tokens >= SETTLED * t.resident_tokens
            and fits(t, target)
        ]
        best = max(candidates, key=lambda t: (saving_s(t, source, target), -t.id), default=None)
        if best is None or saving_s(best, source, target) <= 0:
            break
        taken.add(best.id)
        moves.append(best.id)
        loads[source.id], loads[target.id] = _moved(best, source, target)
    return moves


def _speed(instance: InstanceView) -> float:
    """Seconds of a step of one trajectory alone: the speed of the device.

    Rounded, so that the noise of fits does not order devices.
    """
    return round(step_latency(instance.coefficients, 1, 0), 3)


def _latency(instance: InstanceView) -> float:
    return step_latency(instance.coefficients, max(1, instance.running), instance.resident_tokens)


def fits(trajectory: RunningView, instance: InstanceView) -> bool:
    """Whether the trajectory could start on the instance at once."""
    return (
        instance.running < instance.capacity
        and instance.resident_tokens + trajectory.resident_tokens <= instance.kv_tokens
    )


def saving_s(trajectory: RunningView, source: InstanceView, target: InstanceView) -> float:
    """Seconds by which the trajectory would end sooner on the target, less WORTH times the prefill.

    The source is slowed down by others only as long as they last, the mean of the tokens left to its
    trajectories; after that, the speed of the two devices by themselves counts.
    """
    here = step_latency(source.coefficients, max(1, source.running), source.resident_tokens)
    there = step_latency(
        target.coefficients, target.running + 1, target.resident_tokens + trajectory.resident_tokens
    )
    lasting = (source.expected_tokens - source.resident_tokens) / max(1, source.running)
    cost = prefill_s(target.coefficients, trajectory.resident_tokens)
    beyond = max(0.0, trajectory.remaining_tokens - lasting)
    alone = step_latency(source.coefficients, 1, trajectory.resident_tokens)
    alone -= step_latency(target.coefficients, 1, trajectory.resident_tokens)
    return (here - there) * min(trajectory.remaining_tokens, lasting) + alone * beyond - WORTH * cost


def _moved(
    trajectory: RunningView, source: InstanceView, target: InstanceView
) -> tuple[InstanceView, InstanceView]:
    tokens = trajectory.resident_tokens
    return (
        source._replace(running=source.running - 1, resident_tokens=source.resident_tokens - tokens),
        target._replace(running=target.running + 1, resident_tokens=target.resident_tokens + tokens),
    )


MIGRATIONS: dict[str, Migration] = {"none": none, "gap": by_gap, "benefit": by_benefit}
