"""Trials of episodes: prepares them, starts them again, and calls back what is sampled for them.

Invariant: an episode that begins again keeps nothing of its last trial, and none of its trajectories is in a
queue or at an instance. Nothing is chosen here: the caller has decided.
"""

from controller.core.effects import recall
from controller.core.state.agents.episodes import Episode
from controller.core.state.groups import Group, Trajectory
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group, move_trajectory


def prepared(state: RunState, group: Group) -> None:
    """All episodes of a group have asked for a turn: the group may start."""
    del state.beginnings.groups[group.id]
    move_group(group, "asked")
    group.prompt_tokens = max(member.given_tokens for member in group.members)
    state.prompt_tokens = group.prompt_tokens
    state.fresh.append(group.id)


def leave_preparation(state: RunState, group: Group) -> None:
    """Stop preparing a group."""
    state.beginnings.groups.pop(group.id, None)
    if group.state == "waiting":
        state.fresh.remove(group.id)


def begin_anew(state: RunState, group: Group, episode: Episode) -> None:
    """Run an episode again from its start; its tokens are lost."""
    members = group.of(episode)
    for asked in list(episode.open.values()):
        member = group.members[asked.ask.member]
        call_back(state, group, member)
        move_trajectory(member, "handed")
    for member in members:
        state.accounts.lose(member.clear())
    for fork in members[1:]:
        if fork.state == "waiting":
            move_trajectory(fork, "dropped")
    episode.begin_anew(max(member.attempt for member in members))
    state.accounts.counts["episodes/begun_anew"] += 1
    state.unbegun[group.id, episode.number] = None
    if group.state == "waiting":
        move_group(group, "failed")
        state.fresh.remove(group.id)
        state.beginnings.groups[group.id] = None


def call_back(state: RunState, group: Group, member: Trajectory) -> None:
    """Abort a trajectory's attempt if it runs, and take it out of the queue."""
    recall.abort_running(state, [member])
    state.queue_of(group).remove(member)
