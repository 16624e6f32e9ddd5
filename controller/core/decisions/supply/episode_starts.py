"""Which episode begins at which agent worker.

Invariants: what has started goes before what is only prepared, and takes its place at the workers if there is
no other; held-out episodes have their share.
"""

from heapq import heapify, heappop, heappush

from controller.core.effects import trials, turns
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.state.agents.episodes import LIVE_GROUPS, Episode
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group
from controller.core.state.registry import AgentWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import move_group
from protocol.messages import Begin

Line = list[tuple[bool, bool, int, int]]
"""A heap of episodes that wait for a worker: (is only prepared, is of training, group, number)."""


class EpisodeStarts:
    """Keeps agent workers busy."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds) -> None:
        self.state, self.evaluation = state, evaluation

    def run(self) -> None:
        """Begin what is to be begun, where there is room."""
        if not self.state.config.agent.is_on or not self._has_any:
            return
        line = self._line()
        while (worker := self._freest()) is not None:
            episode = self._next(line)
            if episode is None:
                return
            if not self._has_room(worker) and not self._make_room(episode):
                return
            self._begin(episode, worker if self._has_room(worker) else self._freest())

    @property
    def _has_any(self) -> bool:
        """Whether anything may have to begin: after nearly all events nothing has."""
        return (
            bool(self.state.unbegun) or self._is_preparing_more or self.evaluation.episodes.next() is not None
        )

    @property
    def is_unplaced(self) -> bool:
        """Whether an episode of a group that was begun is at no worker."""
        return any(self._find(*key) is not None for key in self.state.unbegun)

    def _freest(self) -> AgentWorker | None:
        workers = self.state.registry.agents()
        return min(workers, key=lambda w: len(w.episodes) / max(w.capacity, 1), default=None)

    def _has_room(self, worker: AgentWorker) -> bool:
        """Workers with room for less than one group take one all the same, or nothing would ever start."""
        count = sum(1 for _ in self.state.registry.agents())
        least = -(-self._episodes_per_group // count)
        return len(worker.episodes) < max(worker.capacity, least)

    @property
    def _episodes_per_group(self) -> int:
        return self.state.config.rollout.group_size + self.state.config.staleness.spare_responses

    def _line(self) -> Line:
        """All that wait, without those whose group has left; looked at once, however many of them begin."""
        for key in [key for key in self.state.unbegun if self._find(*key) is None]:
            del self.state.unbegun[key]
        is_ending = self.state.ending is not None
        line = [
            self._place(*key)
            for key in self.state.unbegun
            if not is_ending or key[0] >= FIRST_EVALUATION_GROUP
        ]
        heapify(line)
        return line

    def _place(self, group_id: int, number: int) -> tuple[bool, bool, int, int]:
        is_prepared = self.state.groups[group_id].policy_version is None
        return is_prepared, group_id < FIRST_EVALUATION_GROUP, group_id, number

    def _first(self, line: Line) -> Episode | None:
        """The first of the line; those before it that have begun, or wait no more, are taken out."""
        while line:
            episode = self._find(*line[0][2:])
            if episode is not None:
                return episode
            heappop(line)
        return None

    def _next(self, line: Line) -> Episode | None:
        """What has started first, then what is being prepared, then another group; the oldest of each."""
        first = self._first(line)
        if first is not None and line[0] < (True, True):  # a prepared group of training may wait
            return first
        held_out, share = self.evaluation.episodes.next(), self.evaluation.episodes
        is_other = first is not None or self._is_preparing_more
        if held_out is not None and (share.is_below_share or not is_other):
            self.evaluation.episodes.on_begun(held_out)
            return self._first_of(held_out, line)
        if first is not None:
            return first
        if self.state.ending is not None or not self._is_preparing_more:
            return None
        group = self.state.groups[self.state.rows.popleft()]
        group.begin(self._episodes_per_group)
        return self._first_of(group, line)

    @property
    def _is_preparing_more(self) -> bool:
        """Whether another group of training is to be prepared."""
        if not self.state.rows:
            return False
        most = self.state.config.agent.prepare_groups or self.state.config.trainer.batch_groups
        beginning = self.state.beginnings.groups
        count = len(beginning)
        if self.evaluation.round is not None:
            count = sum(id < FIRST_EVALUATION_GROUP for id in beginning)
        return len(self.state.fresh) + count < most

    def _first_of(self, group: Group, line: Line) -> Episode:
        """Of a group whose episodes are to be begun, and join the line."""
        self.state.beginnings.groups[group.id] = None
        for episode in group.episodes:
            self.state.unbegun[group.id, episode.number] = None
            heappush(line, self._place(group.id, episode.number))
        return group.episodes[0]

    def _find(self, group_id: int, number: int) -> Episode | None:
        group = self.state.groups.get(group_id)
        if group is None or group.state not in LIVE_GROUPS:  # it has left, or is complete without this one
            return None
        episode = group.episodes[number]
        return episode if episode.is_unbegun else None

    def _make_room(self, episode: Episode) -> bool:
        """Put the youngest group that is only prepared back, for an episode of one that has started.

        Or for an older one that is only prepared, too, where no place will come free by itself.
        """
        wanting = self.state.groups[episode.group]
        is_first = wanting.is_evaluation and self.evaluation.episodes.is_below_share
        is_prepared = wanting.policy_version is None and not is_first
        if is_prepared and (wanting.is_evaluation or self._will_free_a_place):
            return False
        prepared = [self.state.groups[id] for id in (*self.state.beginnings.groups, *self.state.fresh)]
        prepared = [group for group in prepared if not group.is_evaluation]
        held = [group for group in prepared if any(one.peer is not None for one in group.episodes)]
        if is_prepared:
            held = [group for group in held if group.id > wanting.id]
        if not held:
            return False
        group = max(held, key=lambda group: group.id)
        trials.leave_preparation(self.state, group)
        turns.call_off(self.state, group.episodes, "its place is needed by a group that has started")
        for one in group.episodes:
            self.state.unbegun.pop((group.id, one.number), None)
        move_group(group, "put_back")
        self.state.rows.appendleft(group.id)
        self.state.accounts.counts["episodes/put_back"] += len(group.episodes)
        return True

    @property
    def _will_free_a_place(self) -> bool:
        """Whether an agent worker has an episode of a group that has started, or lacks nobody to start."""
        groups, lacking = self.state.groups, {id for id, _ in self.state.unbegun}
        return any(
            id in groups and (id not in lacking or groups[id].policy_version is not None)
            for worker in self.state.registry.agents()
            for id, _ in worker.episodes
        )

    def _begin(self, episode: Episode, worker: AgentWorker | None) -> None:
        assert worker is not None
        group = self.state.groups[episode.group]
        if episode.asked and not self.state.beginnings.is_replaying:
            trials.begin_anew(self.state, group, episode)
        del self.state.unbegun[episode.group, episode.number]
        self.state.beginnings.count += 1
        episode.peer = worker.peer
        worker.episodes[episode.group, episode.number] = episode.trial
        seed = self.state.environment_seed(group)
        episode.known = len(episode.asked)
        restored = episode.restore(group)
        if restored:
            self.state.accounts.counts["episodes/restored"] += 1
        begin = Begin(*episode.key, seed, episode.first_attempt, len(group.episodes), episode.known, restored)
        self.state.send(worker.peer, begin)
        turns.await_environment(self.state, episode, self.state.config.agent.start_timeout_s)
