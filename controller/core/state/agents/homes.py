"""Homes: the instance where a trajectory's last turn ended, which may still have its KV cache.

Invariants: homes are a guess on which no token depends; an instance that is gone is no home, nor one whose
weights have changed unless KV is kept; only trajectories that continue have one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance, Registry


class Home(NamedTuple):
    """The instance where the next turn of a trajectory needs least prefill."""

    instance: int  # its number, as strategies know it; -1: none
    tokens: int  # tokens of the trajectory that its cache may hold


NOWHERE = Home(-1, 0)


def park(instance: Instance, trajectory: Trajectory) -> None:
    """Note that a turn has ended at an instance, whose cache keeps its KV while there is room."""
    trajectory.home = instance.peer
    instance.parked[trajectory.id] = trajectory.resident_tokens


def home(registry: Registry, trajectory: Trajectory, *, keeps_kv: bool) -> Home:
    """The home of a trajectory; NOWHERE if it has none."""
    found = registry.workers.get(trajectory.home) if trajectory.home is not None else None
    if not isinstance(found, Instance) or (found.pulling is not None and not keeps_kv):
        return NOWHERE
    tokens = found.parked.get(trajectory.id, 0)
    return Home(found.id, tokens) if tokens else NOWHERE


def parked(instance: Instance, groups: Mapping[int, Group]) -> list[int]:
    """Tokens of each continuing trajectory whose home this is; forgets all others."""
    for id in list(instance.parked):
        group = groups.get(id.group)
        member = group.members[id.member] if group and id.member < len(group.members) else None
        if member is None or member.home != instance.peer or member.state not in ("queued", "waiting"):
            del instance.parked[id]
    return list(instance.parked.values())
