"""What is being waited for now: by each worker's oldest unanswered command, and by the oldest group.

Invariant: pure, and nothing is changed; the words of a wait change when it comes nearer to its end, so that
whoever looks again can tell a slow thing from a stuck one.
"""

from controller.groups import Group
from controller.registry import Instance, TextWorker, Worker
from controller.snapshot import GroupSnapshot
from controller.state import RunState
from controller.training import Training

BEGUN = ("generating", "scoring", "occupied", "training")


def working_on(state: RunState, training: Training, worker: Worker) -> str:
    """The oldest thing that a worker was asked for and has not answered; "" if there is none."""
    if worker.is_absent:
        return "coming back, or not"
    if not worker.ready:
        return "getting ready"
    if isinstance(worker, Instance):
        return _of_instance(state, worker)
    if isinstance(worker, TextWorker):
        if worker.scoring:
            return f"scoring group {min(worker.scoring)}"
        return f"encoding prompt {min(worker.encoding)}" if worker.encoding else ""
    making = training.feed.making
    if making is not None:
        return f"training version {making}"
    return "" if training.checkpoint_of is None else f"saving version {training.checkpoint_of}"


def oldest_group(state: RunState) -> GroupSnapshot | None:
    """The first prompt that was begun and has not left; None if there is none."""
    group = next((group for group in state.groups.values() if group.state in BEGUN), None)
    if group is None:
        return None
    version = -1 if group.policy_version is None else group.policy_version
    return GroupSnapshot(group.id, group.state, version, group.response_tokens, _wants(state, group))


def _of_instance(state: RunState, instance: Instance) -> str:
    if instance.pulling is not None:
        return f"pulling version {instance.pulling}"
    id = next(iter(instance.running), None)
    if id is None:
        return ""
    member = state.groups[id.group].members[id.member]
    return f"generating {id}, attempt {member.attempt}, {member.response_tokens} tokens so far"


def _wants(state: RunState, group: Group) -> str:
    match group.state:
        case "generating":
            queued = sum(member.state == "queued" for member in group.members)
            peers = {member.peer: None for member in group.members if member.peer is not None}
            names = ", ".join(state.registry.workers[peer].name for peer in peers) or "none"
            return f"responses that run on {names}" + (f", and {queued} that are queued" if queued else "")
        case "scoring":
            at = [worker.name for worker in state.registry.text_workers() if group.id in worker.scoring]
            return f"its rewards from {at[0]}" if at else "a reward worker"
        case "occupied":
            return "its batch"
    return "the trainer"
