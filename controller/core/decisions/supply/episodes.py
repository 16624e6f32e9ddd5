"""Episodes of agents: who begins which, what they ask, how they end, how long environments may take.

Invariants: what has started goes before what is only prepared, and takes its place at the workers if there is
no other; an ask that was heard before is answered out of the journal and never sampled again; what an
environment or a worker does wrong costs its own episode, and becomes no reward; every wait for an environment
has an end on the core's own clock; failures without any success between end the run.
"""

from collections.abc import Iterator

from controller.core.effects import recall, turns
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.effects.purposes import Purposes
from controller.core.state.agents.episodes import AskedTurn, Ending, Episode
from controller.core.state.groups import FIRST_EVALUATION_GROUP, Group, Trajectory
from controller.core.state.registry import AgentWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import GONE, move_group, move_member
from protocol.messages import Ask, Begin, EpisodeEnded, EpisodeFailed

MAX_DIVERGED = 3  # episodes in a row that asked something else when they were run again: then replay is off
LIVE = ("beginning", "waiting", "generating")  # states of groups whose episodes run
WARN_TIMEOUTS = 0.01  # share of episodes whose environment was silent for too long


class Episodes:
    """Keeps agent workers busy, and takes what they say."""

    def __init__(self, state: RunState, purposes: Purposes, evaluation: EvaluationRounds) -> None:
        self.state, self.purposes, self.evaluation = state, purposes, evaluation
        self._beginning: dict[int, None] = {}  # groups of which not all episodes have asked
        self._failures_in_a_row = self._diverged_in_a_row = 0
        self._first_failure = ""
        self.is_replaying = state.config.agent.replay == "auto"
        self.begun = self.ended = 0

    def restart(self) -> None:
        """The controller was started again: what went wrong before does not count any more."""
        self._failures_in_a_row = self._diverged_in_a_row = 0
        self.is_replaying = self.state.config.agent.replay == "auto"

    # -- who begins what --------------------------------------------------------------------------------

    def run(self) -> None:
        """Begin what is to be begun, where there is room."""
        if not self.state.config.agent.is_on:
            return
        while (worker := self._freest()) is not None:
            episode = self._next()
            if episode is None:
                return
            if not self._has_room(worker) and not self._make_room(episode):
                return
            self._begin(episode, worker if self._has_room(worker) else self._freest())

    @property
    def is_unplaced(self) -> bool:
        """Whether an episode of a group that was begun is at no worker."""
        return any(self._find(*key) is not None for key in self.state.unbegun)

    def next(self) -> float | None:
        """When the time of an environment is over, unless it speaks before; in the time of the run."""
        found = self.state.environments.next()
        return None if found is None else found + self.state.asleep_s

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

    def _next(self) -> Episode | None:
        """What has started first, then what is being prepared, then another group; the oldest of each."""
        for key in [key for key in self.state.unbegun if self._find(*key) is None]:
            del self.state.unbegun[key]  # its group has left
        for id in [id for id in self._beginning if id not in self.state.groups]:
            del self._beginning[id]

        def order(key: tuple[int, int]) -> tuple[bool, bool, int, int]:
            is_training = key[0] < FIRST_EVALUATION_GROUP
            return self.state.groups[key[0]].policy_version is None, is_training, *key

        is_ending = self.state.ending is not None
        keys = (key for key in self.state.unbegun if not is_ending or key[0] >= FIRST_EVALUATION_GROUP)
        first = min(keys, key=order, default=None)
        if first is not None and order(first) < (True, True):  # a prepared group of training may wait
            return self._find(*first)
        wants_more = first is not None or self._is_preparing_more
        held_out = self.evaluation.episodes.next()
        if held_out is not None and (self.evaluation.episodes.is_below_share or not wants_more):
            self.evaluation.episodes.on_begun(held_out)
            return self._first_of(held_out)
        if first is not None:
            return self._find(*first)
        if is_ending or not self._is_preparing_more:
            return None
        group = self.state.groups[self.state.rows.popleft()]
        group.begin(self._episodes_per_group)
        return self._first_of(group)

    @property
    def _is_preparing_more(self) -> bool:
        """Whether another group of training is to be prepared."""
        most = self.state.config.agent.prepare_groups or self.state.config.trainer.batch_groups
        prepared = len(self.state.fresh) + sum(id < FIRST_EVALUATION_GROUP for id in self._beginning)
        return bool(self.state.rows) and prepared < most

    def _first_of(self, group: Group) -> Episode:
        """Of a group whose episodes are to be begun."""
        self._beginning[group.id] = None
        self.state.unbegun |= dict.fromkeys((group.id, episode.number) for episode in group.episodes)
        return group.episodes[0]

    def _find(self, group_id: int, number: int) -> Episode | None:
        group = self.state.groups.get(group_id)
        if group is None or group.state not in LIVE:  # it has left, or is complete without this one
            return None
        episode = group.episodes[number]
        return episode if episode.is_unbegun else None

    def _make_room(self, episode: Episode) -> bool:
        """Put the youngest group that is only prepared back, for an episode of one that has started."""
        wanting = self.state.groups[episode.group]
        is_first = wanting.is_evaluation and self.evaluation.episodes.is_below_share
        if wanting.policy_version is None and not is_first:
            return False
        prepared = [self.state.groups[id] for id in (*self._beginning, *self.state.fresh)]
        prepared = [group for group in prepared if not group.is_evaluation]
        held = [group for group in prepared if any(one.peer is not None for one in group.episodes)]
        if not held:
            return False
        group = max(held, key=lambda group: group.id)
        self._leave_preparation(group)
        turns.call_off(self.state, group.episodes, "its place is needed by a group that has started")
        for one in group.episodes:
            self.state.unbegun.pop((group.id, one.number), None)
        move_group(group, "put_back")
        self.state.rows.appendleft(group.id)
        self.state.accounts.counts["episodes/put_back"] += len(group.episodes)
        return True

    def _begin(self, episode: Episode, worker: AgentWorker | None) -> None:
        assert worker is not None
        group = self.state.groups[episode.group]
        if episode.asked and not self.is_replaying:
            self._begin_anew(group, episode)
        del self.state.unbegun[episode.group, episode.number]
        self.begun += 1
        episode.peer = worker.peer
        worker.episodes[episode.group, episode.number] = episode.trial
        seed = self.state.environment_seed(group)
        episode.known = len(episode.asked)
        begin = Begin(*episode.key, seed, episode.first_attempt, episode.known)
        self.state.send(worker.peer, begin)
        turns.await_environment(self.state, episode, self.state.config.agent.start_timeout_s)

    # -- what agents say --------------------------------------------------------------------------------

    def on_ask(self, worker: AgentWorker, ask: Ask) -> None:
        """The policy has the word: queue the trajectory, or give the answer that it has given before."""
        found = self._live(worker, ask)
        if found is None:
            return
        group, episode = found
        episode.go_on(self.state.awake_s)
        number = episode.heard
        if number < len(episode.asked):
            self._repeat(group, episode, ask)
            return
        if number and number == episode.known:
            self._diverged_in_a_row = 0
            self.state.accounts.counts["episodes/replayed"] += 1
        episode.heard += 1
        member = group.members[episode.number]
        member.give(ask)
        move_member(member, "asked")
        episode.asked.append(AskedTurn(ask, member.begins))
        self.state.accounts.given += ask.given
        if group.is_evaluation and group.state == "beginning":
            del self._beginning[group.id]
            self.evaluation.episodes.on_asked(group)
        if group.state == "generating":
            self.state.requeue(member)
        elif all(one.asked for one in group.episodes):
            self._prepared(group)

    def on_ended(self, worker: AgentWorker, end: EpisodeEnded) -> None:
        """A function has returned: its reward counts, and the turns that were over."""
        found = self._live(worker, end)
        if found is None:
            return
        group, episode = found
        if not episode.is_caught_up:
            self._diverged(group, episode)
            return
        turns.leave_worker(self.state, episode)
        self._failures_in_a_row = 0
        limit = self.state.config.agent.on_limit if end.ending != "stop" else "score"
        if limit == "mask" and group.is_evaluation:  # which counts all that it has asked for
            limit = "zero"
        episode.reward = 0.0 if limit == "zero" else end.reward[0] if end.reward else None
        episode.is_masked = limit == "mask"
        episode.parts = end.parts if limit == "score" else ()
        episode.turn_rewards = end.turn_rewards if limit == "score" else ()
        episode.noted = end.metrics
        self._end(group, episode, end.ending)

    def on_failed(self, worker: AgentWorker, failure: EpisodeFailed) -> None:
        """An environment or a function failed: that is nobody's reward."""
        found = self._live(worker, failure)
        if found is None:
            return
        group, episode = found
        counts = self.state.accounts.counts
        counts[f"episodes/failed_{failure.kind}"] += 1
        turns.leave_worker(self.state, episode)
        if failure.kind == "process":
            episode.processes_lost += 1
            if episode.processes_lost <= self.state.config.agent.retries:
                self.state.unbegun[group.id, episode.number] = None
                return
        told = f"Episode {episode.number} of prompt {group.id} failed at {worker.name}: {failure.reason}"
        self._failed(group, episode, f"{told}\nThe row was: {failure.row}")

    def _live(
        self, worker: AgentWorker, message: Ask | EpisodeEnded | EpisodeFailed
    ) -> tuple[Group, Episode] | None:
        """Whom a word is about; None if that was ended meanwhile."""
        if worker.episodes.get((message.group, message.episode)) != message.trial:
            return None
        group = self.state.groups[message.group]
        return group, group.episodes[message.episode]

    def _repeat(self, group: Group, episode: Episode, ask: Ask) -> None:
        """An ask of a function that runs again: the turn of then answers it."""
        asked = episode.asked[episode.heard]
        if not asked.is_repeated_by(ask):
            self._diverged(group, episode)
            return
        episode.heard += 1
        if not asked.is_open:
            self.state.accounts.counts["episodes/replayed_turns"] += 1
            turns.answer(self.state, group, episode, episode.heard - 1)

    def _diverged(self, group: Group, episode: Episode) -> None:
        """The function asked something else than when it ran before: what was sampled for it does not fit."""
        self.state.accounts.counts["episodes/diverged"] += 1
        turns.call_off(self.state, [episode], "it asked something else than before; it begins anew")
        self._diverged_in_a_row += 1
        if self._diverged_in_a_row >= MAX_DIVERGED and self.is_replaying:
            self.is_replaying = False
            self.state.warn_once(
                "replay",
                f"{MAX_DIVERGED} episodes in a row asked something else when they were run again: "
                "the environment is not a function of policy.seed. From now on the episodes of a lost worker "
                "begin anew, as with `agent.replay: never`.",
            )
        self._begin_anew(group, episode)

    # -- how they end -----------------------------------------------------------------------------------

    def expire(self) -> None:
        """End episodes whose environments were silent for too long."""
        environments, asleep_s = self.state.environments, self.state.asleep_s
        while (until := environments.next()) is not None and until + asleep_s <= self.state.now:
            episode = environments.first()
            self._expire(self.state.groups[episode.group], episode)

    def _expire(self, group: Group, episode: Episode) -> None:
        agent, counts = self.state.config.agent, self.state.accounts.counts
        assert episode.since is not None
        waited_s = self.state.awake_s - episode.since
        turn = f"turn {len(episode.asked)}" if episode.asked else "its start"
        key = "agent.turn_timeout_s" if episode.heard else "agent.start_timeout_s"
        if episode.heard and waited_s < agent.turn_timeout_s - 1e-6:
            key = "agent.episode_timeout_s"
        told = f"its environment was silent for {waited_s:.1f} s after {turn} ({key})"
        counts["episodes/timeouts"] += 1
        is_answered = bool(episode.heard) and episode.is_caught_up  # else it was its start, or its replay
        turns.call_off(self.state, [episode], told)
        if counts["episodes/timeouts"] > max(1, WARN_TIMEOUTS * self.begun):
            text = f"Episode {episode.number} of prompt {group.id}: {told}"
            self.state.warn_counted("timeouts", f"{text}, and of {self.begun} others over 1 % were.")
        if agent.on_timeout == "score" and is_answered:
            episode.reward = 0.0
            self._end(group, episode, "timeout")
        else:
            self._failed(group, episode, f"Episode {episode.number} of prompt {group.id}: {told}")

    def _end(self, group: Group, episode: Episode, ending: Ending) -> None:
        """An episode is over, and has its reward or will get it."""
        state, member = self.state, group.members[episode.number]
        episode.ending = ending
        self.ended += 1
        state.accounts.counts[f"ending/{ending}"] += 1
        if episode.asked and episode.asked[-1].is_open:
            self._call_back(group, member)
            episode.asked.pop()
            state.accounts.drop(member.take_turn_back())
        if episode.is_masked:
            move_member(member, "dropped")
            state.accounts.mask(member.response_tokens)
            group.finished_lengths.append(member.response_tokens)
        else:
            group.finish(member, "stop" if ending == "stop" else "length")
        recall.complete(state, group)

    def _call_back(self, group: Group, member: Trajectory) -> None:
        """Whatever is sampled for a trajectory is not wanted."""
        recall.abort_running(self.state, [member])
        self.state.queue_of(group).remove(member)

    def _failed(self, group: Group, episode: Episode, told: str) -> None:
        """Begin one episode anew, or set its prompt aside; what never works ends the run."""
        state, agent = self.state, self.state.config.agent
        state.warn_once("episode", told)
        episode.failures += 1
        if not group.is_evaluation:  # held-out failures are counted and named, and end no run
            self._first_failure = told if self._failures_in_a_row == 0 else self._first_failure
            self._failures_in_a_row += 1
        if self._failures_in_a_row >= agent.max_consecutive_failures:
            count = f"{self._failures_in_a_row} episodes failed in a row, and none ended between"
            text = f"{count} (agent.max_consecutive_failures). The first: {self._first_failure}"
            state.end(text, is_success=False)
        if episode.failures > agent.retries:
            self._leave_preparation(group)
            reason = f"an episode failed {episode.failures} times: {told}"
            self.purposes.of(group).on_failed(group, reason)
            return
        self._begin_anew(group, episode)

    def _begin_anew(self, group: Group, episode: Episode) -> None:
        """Run it again with nothing known: its tokens are lost."""
        member = group.members[episode.number]
        if episode.asked and episode.asked[-1].is_open:
            self._call_back(group, member)
            move_member(member, "handed")
        self.state.accounts.lose(member.clear())
        episode.begin_anew(member.attempt)
        self.state.accounts.counts["episodes/begun_anew"] += 1
        self.state.unbegun[group.id, episode.number] = None
        if group.state == "waiting":
            move_group(group, "failed")
            self.state.fresh.remove(group.id)
            self._beginning[group.id] = None

    def _prepared(self, group: Group) -> None:
        """All its episodes have asked: it may start."""
        del self._beginning[group.id]
        move_group(group, "asked")
        group.prompt_tokens = max(member.given_tokens for member in group.members)
        self.state.prompt_tokens = group.prompt_tokens
        self.state.fresh.append(group.id)

    def _leave_preparation(self, group: Group) -> None:
        self._beginning.pop(group.id, None)
        if group.state == "waiting":
            self.state.fresh.remove(group.id)

    # -- invariants -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every episode is at one worker, waits for one, or is over. Raises: AssertionError."""
        at = {key: worker.peer for worker in self.state.registry.agents() for key in worker.episodes}
        for group in self._groups():
            is_preparing = group.state == "beginning"
            assert is_preparing == (group.id in self._beginning), f"group {group.id} is {group.state}"
            for episode, member in zip(group.episodes, group.members, strict=True):
                self._check(group, episode, member, at)
        there = {key for key in at if key[0] in self.state.groups}
        assert len(there) == len(at), f"episodes of groups that have left: {at}"

    def _check(
        self, group: Group, episode: Episode, member: Trajectory, at: dict[tuple[int, int], str]
    ) -> None:
        here = f"episode {episode.key}"
        assert at.get((group.id, episode.number)) == episode.peer, f"{here} is not at {episode.peer}"
        if group.state in LIVE and episode.is_unbegun:
            assert (group.id, episode.number) in self.state.unbegun, f"{here} is nowhere"
        if group.state not in LIVE:
            assert episode.peer is None, f"{here} runs, and its group is {group.state}"
            return
        is_open = bool(episode.asked) and episode.asked[-1].is_open
        has_word = episode.peer is not None and not (is_open and episode.is_caught_up)
        assert has_word == (episode.until is not None), f"{here} waits until {episode.until}"
        assert is_open == (member.state in ("queued", "running")), f"{here}: {member.id} is {member.state}"

    def _groups(self) -> Iterator[Group]:
        return (group for group in self.state.groups.values() if group.episodes and group.state != GONE)
