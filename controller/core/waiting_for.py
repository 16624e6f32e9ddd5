"""What the next train step, each worker's oldest unanswered command and the oldest group wait for.

Invariant: pure, and nothing is changed; the text of a wait changes as it progresses, so that a second look
tells a slow wait from a stuck one.
"""

from typing import TYPE_CHECKING

from controller.core.state.agents.episodes import Episode
from controller.core.state.bottleneck import Cause
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.registry import AgentWorker, Instance, TextWorker, Worker
from controller.core.state.run_state import RunState
from controller.core.state.views.snapshot import GroupSnapshot

if TYPE_CHECKING:
    from controller.core.core import Core

ROLLOUT = "a rollout worker that is ready and has weights"
REWARD = "a reward worker"
TRAINER = "the trainer to be ready"
BEGUN = ("beginning", "generating", "scoring", "occupied", "training")


def awaited(core: "Core") -> Cause:
    """What the next train step waits for now.

    It is called at each event, so it looks at instances only up to the first that generates.
    """
    state, training = core.state, core.training
    if training.trainer_batches.making is not None:
        return "training"
    if state.device == "changing" and state.versions.newest is not None:
        return "weights"
    if state.paused is not None:
        return "paused"
    is_supervised = state.config.trainer.is_supervised
    registry = state.registry
    text_workers = list(registry.text_workers())
    is_there = registry.trainer() is not None and bool(text_workers)
    if state.config.agent.is_on and next(registry.agents(), None) is None:
        return "start-up"
    if not is_there or (not is_supervised and not (registry.ready_instances and state.versions.newest)):
        return "start-up"
    if training.held_until is not None:
        return "pace"
    if is_supervised:
        return "data"
    unscored = _unscored(core, text_workers)
    return _why_incomplete(state, unscored, is_more_there=bool(state.fresh))


def _why_incomplete(state: RunState, unscored: int, *, is_more_there: bool) -> Cause:
    """Why the groups of the next batch are missing.

    `unscored`: groups that only wait for rewards; `is_more_there`: whether encoded prompts wait to start.
    """
    ledger = state.ledger
    missing = ledger.batch_groups - ledger.occupied
    if missing > 0 and unscored >= missing:
        return "scoring"
    if missing <= 0 and unscored > ledger.reserved - unscored:  # the batch waits for groups that are due now
        return "scoring"
    is_more_wanted = is_more_there and not state.queue
    if _is_generating(state):
        is_mostly_idle = 2 * state.registry.busy_instances < state.registry.ready_instances
        return "cap" if is_mostly_idle and is_more_wanted else "rollout"
    newest = state.versions.newest
    is_unpublished = newest is not None and newest.policy_version < state.steps
    if is_unpublished or any(instance.pulling is not None for instance in state.registry.instances()):
        return "weights"
    if unscored:
        return "scoring"
    if state.config.agent.is_on and not state.queue:
        is_begun = bool(state.rows or state.unbegun) or state.environments.next() is not None
        if ledger.reserved or (is_begun and not is_more_there):  # else prepared groups wait for room
            return "environments"
    if not is_more_there and not state.queue:
        return "data"
    return "cap" if is_more_wanted else "rollout"


def _is_generating(state: RunState) -> bool:
    """Whether any instance has work and is not pulling."""
    for instance in state.registry.instances():  # noqa: SIM110  # nearly always the first: no generator
        if instance.running and instance.pulling is None:
            return True
    return False


def _unscored(core: "Core", workers: list[TextWorker]) -> int:
    """Training groups whose responses are complete and whose rewards are missing."""
    scoring = core.scoring
    if core.evaluation.round is None:
        count = len(scoring.to_score)
        for worker in workers:
            count += len(worker.scoring)
        return count
    ids = [*scoring.to_score, *(id for worker in workers for id in worker.scoring)]
    return sum(id < FIRST_EVALUATION_GROUP for id in ids)


def working_on(core: "Core", worker: Worker) -> str:
    """The oldest unanswered command of a worker, in words; "" if there is none."""
    if worker.is_absent:
        return "coming back, or not"
    if not worker.ready:
        return "getting ready"
    if isinstance(worker, Instance):
        return _of_instance(core.state, worker)
    if isinstance(worker, TextWorker):
        if worker.scoring:
            return f"scoring group {min(worker.scoring)}"
        return f"encoding prompt {min(worker.encoding)}" if worker.encoding else ""
    if isinstance(worker, AgentWorker):
        found = next(iter(worker.episodes), None)
        return "" if found is None else f"running {len(worker.episodes)} episodes, first of group {found[0]}"
    making = core.training.trainer_batches.making
    if making is not None:
        return f"training version {making}"
    saving = core.training.checkpoint_of
    return "" if saving is None else f"saving version {saving}"


def next_step(core: "Core") -> str:
    """What the next train step waits for, in words."""
    state = core.state
    if state.ending is not None and not core.training.batch:
        return "what is left to be saved and evaluated"
    if state.registry.trainer() is None:
        return TRAINER
    if core.training.trainer_batches.is_behind:
        return f"the trainer to make versions up to {state.steps} again"
    if core.training.batch:
        return f"the trainer to finish version {state.steps + 1}"
    if state.paused is not None:
        return "an operator to unpause it"
    if state.device == "changing":
        return f"the device to be free for the {core.shared_device.side} side"
    has_instance = any(instance.is_routable for instance in state.registry.instances())
    if not has_instance and not state.config.trainer.is_supervised:
        return ROLLOUT
    if not any(True for _ in state.registry.text_workers()):
        return REWARD
    blockers = state.ledger.blockers()
    missing = state.ledger.batch_groups - state.ledger.occupied
    if missing > 0 and core.scoring.reading and state.is_all_occupied:
        return f"the next {core.scoring.reading} rows of the data"
    if missing > 0:
        return f"{missing} more groups"
    if blockers:
        return f"groups due now: {', '.join(map(str, blockers[:5]))}"
    return "the trainer to be given the batch that is complete"


def oldest_group(state: RunState) -> GroupSnapshot | None:
    """The oldest group that has begun and not left; None if there is none.

    A run that ends has called its groups back: it waits for those of an evaluation alone.
    """
    begun = (group for group in state.groups.values() if group.state in BEGUN)
    group = next((group for group in begun if state.ending is None or group.is_evaluation), None)
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
    waiting = [episode for episode in group.episodes if episode.since is not None]
    match group.state:
        case "beginning" | "generating" if waiting:
            return environment_in_words(state, min(waiting, key=lambda episode: episode.since or 0.0))
        case "beginning":
            return "an agent worker with room"
        case "generating":
            queued = sum(member.state == "queued" for member in group.members)
            peers = {member.peer: None for member in group.members if member.peer is not None}
            if not peers:
                return f"an instance for {queued} queued response{'s' * (queued != 1)}"
            names = ", ".join(state.registry.workers[peer].name for peer in peers)
            return f"responses that run on {names}" + (f", and {queued} that are queued" if queued else "")
        case "scoring":
            at = [worker.name for worker in state.registry.text_workers() if group.id in worker.scoring]
            return f"its rewards from {at[0]}" if at else REWARD
        case "occupied":
            return "its batch"
        case _:
            return "the trainer"


def environment_in_words(state: RunState, episode: Episode) -> str:
    """An environment that is to act, for how long it has been awaited, and its limit."""
    assert episode.since is not None
    assert episode.until is not None
    waited_s, limit_s = state.awake_s - episode.since, episode.until - episode.since
    turn = f"turn {len(episode.asked)}" if episode.asked else "its start"
    return f"its environment, episode {episode.number}, {turn}, {waited_s:.0f} s of {limit_s:.0f}"
