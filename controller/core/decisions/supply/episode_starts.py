"""Chooses which episode begins at which agent worker.

Invariants: episodes of started groups go before those of groups in preparation, and take their places at the
workers if there are no others; held-out episodes have their share.
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
"""A heap of episodes that wait for a worker: (is in preparation, is of training, group, number)."""


class EpisodeStarts:
    """Keeps agent workers busy."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds) -> None:
        self.state, self.evaluation = state, evaluation

    def run(self) -> None:
        """Begin waiting episodes at workers with room."""
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
        """Whether any episode may have to begin, which is rare."""
        return (
            bool(self.state.unbegun) or self._is_preparing_more or self.evaluation.episodes.next() is not None
        )

    @property
    def is_unplaced(self) -> bool:
        """Whether an episode waits for a worker."""
        return any(self._find(*key) is not None for key in self.state.unbegun)

    def _freest(self) -> AgentWorker | None:
        workers = self.state.registry.agents()
        return min(workers, key=lambda w: len(w.episodes) / max(w.capacity, 1), default=None)

    def _has_room(self, worker: AgentWorker) -> bool:
        """Whether a worker takes one more; all together take one group in any case, so that some start."""
        count = sum(1 for _ in self.state.registry.agents())
        least = -(-self._episodes_per_group // count)
        return len(worker.episodes) < max(worker.capacity, least)

    @property
    def _episodes_per_group(self) -> int:
        return self.state.config.rollout.group_size + self.state.config.staleness.spare_responses

    def _line(self) -> Line:
        """All waiting episodes that may begin now; made once, however many of them do.

        In a pause none of a training group in preparation may, and once the run is to end none of training.
        """
        for key in [key for key in self.state.unbegun if self._find(*key) is None]:
            del self.state.unbegun[key]
        is_ending, is_paused = self.state.ending is not None, self.state.paused is not None
        places = [self._place(*key) for key in self.state.unbegun]
        line = [place for place in places if not (place[1] and (is_ending or (is_paused and place[0])))]
        heapify(line)
        return line

    def _place(self, group_id: int, number: int) -> tuple[bool, bool, int, int]:
        is_prepared = self.state.groups[group_id].policy_version is None
        return is_prepared, group_id < FIRST_EVALUATION_GROUP, group_id, number

    def _first(self, line: Line) -> Episode | None:
        """The first episode of the line that still waits; entries before it are taken out."""
        while line:
            episode = self._find(*line[0][2:])
            if episode is not None:
                return episode
            heappop(line)
        return None

    def _next(self, line: Line) -> Episode | None:
        """The next episode, oldest first: of started groups, of those in preparation, then of a new one."""
        first = self._first(line)
        if first is not None and line[0] < (True, True):  # a training group in preparation may wait
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
        """Whether to prepare another training group; no prompt starts while the run is paused."""
        if not self.state.rows or self.state.paused is not None:
            return False
        most = self.state.config.agent.prepare_groups or self.state.config.trainer.batch_groups
        beginning = self.state.beginnings.groups
        count = len(beginning)
        if self.evaluation.round is not None:
            count = sum(id < FIRST_EVALUATION_GROUP for id in beginning)
        return len(self.state.fresh) + count < most

    def _first_of(self, group: Group, line: Line) -> Episode:
        """Put all episodes of a group into the line; returns the first."""
        self.state.beginnings.groups[group.id] = None
        for episode in group.episodes:
            self.state.unbegun[group.id, episode.number] = None
            heappush(line, self._place(group.id, episode.number))
        return group.episodes[0]

    def _find(self, group_id: int, number: int) -> Episode | None:
        group = self.state.groups.get(group_id)
        if group is None or group.state not in LIVE_GROUPS:  # it has left, or is complete without it
            return None
        episode = group.episodes[number]
        return episode if episode.is_unbegun else None

    def _make_room(self, episode: Episode) -> bool:
        """Put the youngest group in preparation back, to make room for an episode of a started group.

        Or for one of an older group in preparation, where no place would come free by itself.
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
        """Whether a worker has an episode of a group that has started, or that waits for no other episode."""
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
