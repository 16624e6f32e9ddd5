"""The groups that one worker works on at a moment, for a segment of its lane.

Invariants: pure, the core is not changed; the answer takes a few kB, however large the worker is.
"""

from typing import Any

from controller.core.core import Core
from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker

MOST_GROUPS = 64
Json = dict[str, Any]


def held_by(core: Core, name: str) -> Json:
    """The worker's groups and its members of them, by number; `role` is "" if there is no such worker."""
    worker = next((one for one in core.state.registry.workers.values() if one.name == name), None)
    if worker is None:
        return {"name": name, "role": "", "groups": [], "more": 0}
    members = _members(core, worker)
    groups = [_told(core, group, members[group]) for group in sorted(members)[:MOST_GROUPS]]
    return {"name": name, "role": worker.role, "groups": groups, "more": max(0, len(members) - MOST_GROUPS)}


def _members(core: Core, worker: Worker) -> dict[int, list[int]]:
    """By group, which of its trajectories or episodes; none where it has the group as a whole."""
    found: dict[int, list[int]] = {}
    if isinstance(worker, Instance):
        for group, member in worker.running:
            found.setdefault(group, []).append(member)
    elif isinstance(worker, TextWorker):
        found = {group: [] for group in (*worker.scoring, *worker.encoding)}
    elif isinstance(worker, AgentWorker):
        for group, episode in worker.episodes:
            found.setdefault(group, []).append(episode)
    elif worker.role == "trainer":
        found = {group: [] for group in core.training.batch}
    return found


def _told(core: Core, number: int, members: list[int]) -> Json:
    group = core.state.groups.get(number)
    told: Json = {"group": number, "state": "encoding" if group is None else group.state}
    by_member = {} if group is None else {member.id.member: member for member in group.members}
    told["members"] = [
        {"member": one, "tokens": by_member[one].response_tokens if one in by_member else 0}
        for one in sorted(members)
    ]
    return told
