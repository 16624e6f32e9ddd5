"""Homes: the instances where turns of trajectories have ended, which may still have their KV.

Invariants: a belief, on which no token depends; an instance that is gone, or whose weights have changed, is
no home unless KV is kept; only trajectories that go on have one.
"""

from collections.abc import Mapping
from typing import NamedTuple

from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance, Registry


class Home(NamedTuple):
    """Where the next turn of a trajectory needs least prefill."""

    instance: int  # as strategies call it; -1: nowhere
    tokens: int  # that it may have


NOWHERE = Home(-1, 0)


def park(instance: Instance, trajectory: Trajectory) -> None:
    """A turn has ended there; while nobody needs the room, its KV stays."""
    trajectory.home = instance.peer
    instance.parked[trajectory.id] = trajectory.resident_tokens


def home(registry: Registry, trajectory: Trajectory, *, keeps_kv: bool) -> Home:
    """The home of a trajectory."""
    found = registry.workers.get(trajectory.home) if trajectory.home is not None else None
    if not isinstance(found, Instance) or (found.pulling is not None and not keeps_kv):
        return NOWHERE
    tokens = found.parked.get(trajectory.id, 0)
    return Home(found.id, tokens) if tokens else NOWHERE


def parked(instance: Instance, groups: Mapping[int, Group]) -> list[int]:
    """Tokens of each trajectory that goes on and whose home this is; what is over is forgotten."""
    for id in list(instance.parked):
        group = groups.get(id.group)
        member = group.members[id.member] if group and id.member < len(group.members) else None
        if member is None or member.home != instance.peer or member.state not in ("queued", "waiting"):
            del instance.parked[id]
    return list(instance.parked.values())
