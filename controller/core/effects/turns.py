"""Turns of agents: ends and answers them, and ends episodes at their workers.

Invariants: an agent worker is sent a turn only when all its tokens are in the store; an environment has a
deadline from the moment when the episode waits only for it; an episode that leaves is at no worker any more.
Nothing is chosen here: the caller has decided.
"""

from collections.abc import Iterable

from controller.core.state.agents.episodes import AskedTurn, Episode
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import AgentWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_trajectory
from protocol.ids import PeerId
from protocol.messages import EndEpisodes, Ending, Turn


def end_turn(state: RunState, group: Group, member: Trajectory, ending: Ending) -> None:
    """An attempt at a turn has ended: answer the environment, or continue the turn elsewhere."""
    if ending == "interrupt" and member.turn_tokens < member.most:
        state.requeue(member)
        return
    if ending != "interrupt" and not group.is_evaluation:
        state.lengths.observe(member.turn_tokens, ending == "length")
    move_trajectory(member, "handed")
    episode = group.episode_of(member.id.member)
    asked = episode.open.pop(member.id.member)
    asked.ends = len(member.segments)
    asked.ending = "stop" if ending == "stop" else "length"
    if asked.is_heard:
        answer(state, group, episode, asked)


def answer(state: RunState, group: Group, episode: Episode, asked: AskedTurn) -> None:
    """Send a finished turn to the worker of its episode."""
    assert episode.peer is not None
    ask = asked.ask
    asked.took_s = state.awake_s - asked.heard_at
    segments = tuple(group.members[ask.member].segments[asked.begins : asked.ends])
    turn = Turn(*episode.key, ask.number, ask.member, segments[-1].attempt, asked.ending, segments)
    state.send(episode.peer, turn)
    if episode.awaits_policy:
        return
    agent = state.config.agent
    await_environment(state, episode, min(agent.turn_timeout_s, agent.episode_timeout_s - episode.own_s))


def await_environment(state: RunState, episode: Episode, limit_s: float) -> None:
    """The environment acts now, for `limit_s` at most."""
    episode.wait(state.awake_s, limit_s)
    state.environments.watch(episode)


def leave_worker(state: RunState, episode: Episode) -> None:
    """Note that an episode is at its worker no longer; the worker knows."""
    worker = None if episode.peer is None else state.registry.workers.get(episode.peer)
    if isinstance(worker, AgentWorker):
        worker.episodes.pop((episode.group, episode.number), None)
    episode.leave()


def lose_worker(state: RunState, worker: AgentWorker) -> None:
    """Begin the episodes of a lost worker elsewhere; the turns sampled for them continue meanwhile."""
    for group, number in list(worker.episodes):
        leave_worker(state, state.groups[group].episodes[number])
        state.unbegun[group, number] = None


def call_off(state: RunState, episodes: Iterable[Episode], why: str) -> None:
    """Tell the workers of these episodes to drop them."""
    found: dict[PeerId, list[tuple[int, int, int]]] = {}
    for episode in episodes:
        if episode.peer is not None:
            found.setdefault(episode.peer, []).append(episode.key)
            leave_worker(state, episode)
    for peer, keys in found.items():
        state.send(peer, EndEpisodes(tuple(keys), why))
