"""Ends attempts and groups: calls running attempts back, and keeps queue, ledger and accounts consistent.

Invariants: a removed group is on no instance, in no queue, not in the ledger and with no reward worker; a
group is complete with exactly as many finished trajectories as are trained, and its spare ones are dropped at
once. Nothing is chosen here: the caller has decided.
Source: StaleFlow (arXiv 2601.12784), rollout coordinator: Interrupt, Abort.
"""

from collections.abc import Iterable, Sequence

from controller.core.commands import DropPayload
from controller.core.effects import turns
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.transitions import GroupEnd, move_group, move_trajectory
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Abort, Ending, Interrupt

# -- groups ---------------------------------------------------------------------------------------------


def remove(state: RunState, group: Group, end: GroupEnd, *, unneeded: tuple[int, ...] | None = None) -> None:
    """Remove a group without training it, wherever its members are; admission starts a fresh one by itself.

    `unneeded`: groups whose payload is deleted instead of this group's.
    """
    abort_running(state, group.members)
    turns.call_off(state, group.episodes, f"group {group.id} is not needed any more")
    move_group(group, end)
    if group.id in state.ledger:
        state.ledger.release(group.id)
    for member in group.members:
        state.queue_of(group).remove(member)
    for worker in state.registry.text_workers():
        worker.encoding.discard(group.id)
        worker.scoring.discard(group.id)
    state.accounts.close(group.response_tokens, end)
    _tell_dropped(state, group)
    state.windows.left(group)
    if group.members:
        state.accounts.counts[f"groups/{end}"] += 1
    state.started -= group.policy_version is not None and not group.is_evaluation
    state.beginnings.groups.pop(group.id, None)
    del state.groups[group.id]
    doomed = (group.id,) if unneeded is None else unneeded
    if doomed:
        state.emit(DropPayload(doomed))


def withdraw(state: RunState, group: Group) -> None:
    """Stop a generating group and discard its tokens; it is the next to start again."""
    abort_running(state, group.members)
    move_group(group, "withdrawn")
    state.ledger.release(group.id)
    for member in group.members:
        state.queue.remove(member)
    state.accounts.close(group.response_tokens, "aborted")
    _tell_dropped(state, group)
    for member in group.members:
        member.response_tokens = 0
        member.segments.clear()
    state.started -= 1
    group.policy_version = None
    state.fresh.appendleft(group.id)


def cut_short(state: RunState, group: Group) -> None:
    """End the responses of a group where they are: running ones are interrupted and count as too long."""
    group.is_cut_short = True
    for member in group.members:
        if member.state == "queued":
            state.queue.remove(member)
            end_attempt(state, group, member, "interrupt")
    for peer, attempts in by_peer(group.members).items():
        state.send(peer, Interrupt(attempts))


# -- attempts -------------------------------------------------------------------------------------------


def end_attempt(state: RunState, group: Group, member: Trajectory, ending: Ending) -> None:
    """Requeue or finish the trajectory of an ended attempt, and complete its group if it was the last."""
    if group.episodes:
        turns.end_turn(state, group, member, ending)
        return
    is_whole = member.response_tokens >= state.longest_response(group)
    is_cut = is_whole or (group.is_cut_short and member.response_tokens)
    if ending == "interrupt" and not is_cut:
        state.requeue(member)
        return
    if ending != "interrupt" and not group.is_evaluation:
        state.lengths.observe(member.response_tokens, ending == "length")
    group.finish(member, "stop" if ending == "stop" else "length")
    complete(state, group)


def complete(state: RunState, group: Group) -> None:
    """Send a group that has all responses it needs to scoring, and drop its spare ones."""
    if group.is_complete and group.state == "generating":
        _drop_spare(state, group)
        if group.episodes:
            group.size = len(group.kept_episodes)  # masked episodes do not count
        if group.size:
            state.completed.append(group)
        else:
            remove(state, group, "filtered")


def take_back(state: RunState, instance: Instance, ids: Sequence[TrajectoryId]) -> None:
    """Requeue trajectories whose instance is gone or has dropped them."""
    lost = [state.groups[id.group].members[id.member] for id in ids]
    for member in lost:
        state.registry.take(instance, member)
    for member in lost:
        if member.state == "queued":  # else its group was complete without it
            end_attempt(state, state.groups[member.id.group], member, "interrupt")


def take_back_all(state: RunState, instance: Instance) -> None:
    """Requeue all trajectories of an instance that is gone; they continue after the last reported token."""
    state.instance_kinds.leave(instance.id)
    take_back(state, instance, list(instance.running))


def take_back_promised(state: RunState, instance: Instance) -> None:
    """Abort and requeue trajectories that were routed behind a pull which has failed."""
    members = [state.groups[id.group].members[id.member] for id in instance.promised]
    abort_running(state, members)
    for member in members:
        state.requeue(member)


def by_peer(members: Iterable[Trajectory]) -> dict[PeerId, tuple[tuple[int, int, int], ...]]:
    """Running attempts of these members, as messages name them, by instance."""
    attempts: dict[PeerId, list[tuple[int, int, int]]] = {}
    for member in members:
        if member.peer is not None:
            attempts.setdefault(member.peer, []).append(member.id.attempt(member.attempt))
    return {peer: tuple(listed) for peer, listed in attempts.items()}


def _drop_spare(state: RunState, group: Group) -> None:
    spare = [member for member in group.members if member.state in ("queued", "running", "waiting")]
    abort_running(state, spare)
    turns.call_off(state, group.episodes, f"group {group.id} is complete without it")
    state.windows.dropped(group, [member.response_tokens for member in spare])
    for member in spare:
        state.queue.remove(member)  # held-out groups have no spare members
        state.accounts.drop(member.response_tokens)
        move_trajectory(member, "dropped")
    if not (group.is_cut_short or group.is_evaluation or group.episodes):
        state.lengths.observe_group(group.finished_lengths)
    if not group.is_evaluation:
        state.learn_lengths(group)


def _tell_dropped(state: RunState, group: Group) -> None:
    """Count in its window of prompts the responses of a group that leaves or starts over incomplete."""
    if group.policy_version is not None and not group.is_complete:
        state.windows.dropped(group, [member.response_tokens for member in group.members])


def abort_running(state: RunState, members: Iterable[Trajectory]) -> None:
    """Abort the running attempts of these members; they become `queued`, but are put into no queue."""
    running = [member for member in members if member.peer is not None]
    for peer, attempts in by_peer(running).items():
        state.send(peer, Abort(attempts))
    for member in running:
        assert member.peer is not None
        instance = state.registry.workers[member.peer]
        assert isinstance(instance, Instance)
        state.registry.take(instance, member)
