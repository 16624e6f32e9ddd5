"""Handles what agent workers report of episodes: asks, ends, failures; and enforces their time limits.

Invariants: a repeated ask is answered from the journal and never sampled again; a fault of an environment or
a worker costs its own episode, and never becomes a reward; every wait for an environment has a deadline on
the core's clock; a series of failures without a success ends the run.
"""

from collections.abc import Iterator

from controller.core.effects import recall, trials, turns
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.effects.futile_groups import FutileGroups
from controller.core.effects.purposes import Purposes
from controller.core.state.agents.episodes import LIVE_GROUPS, AskedTurn, Ending, Episode
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import AgentWorker
from controller.core.state.run_state import RunState
from controller.core.state.transitions import GONE, move_trajectory
from protocol.messages import Ask, EpisodeEnded, EpisodeFailed

MAX_DIVERGED = 3  # consecutive episodes that asked something else when run again; then replay is turned off
MAX_LEFT_OUT = 256  # consecutive prompts that hit a limit before a first turn; then the data does not fit
WARN_TIMEOUTS = 0.01  # share of episodes whose environment timed out, beyond which a warning is due


class Episodes:
    """Handles messages of agent workers about episodes."""

    def __init__(self, state: RunState, purposes: Purposes, evaluation: EvaluationRounds) -> None:
        self.state, self.purposes, self.evaluation = state, purposes, evaluation
        self._failures_in_a_row = self._diverged_in_a_row = self._left_out_in_a_row = 0
        self._first_failure = ""
        self._masked = FutileGroups(state)
        self.ended = 0

    def restart(self) -> None:
        """The controller was restarted: failures before that do not count any more."""
        self._failures_in_a_row = self._diverged_in_a_row = self._left_out_in_a_row = 0
        self._masked.reset()
        self.state.beginnings.is_replaying = self.state.config.agent.replay == "auto"

    def next(self) -> float | None:
        """Next deadline of an environment, in seconds since the run began; None if there is none."""
        found = self.state.environments.next()
        return None if found is None else found + self.state.asleep_s

    # -- messages of agent workers ----------------------------------------------------------------------

    def on_ask(self, worker: AgentWorker, ask: Ask) -> None:
        """An episode asks for a turn: queue its trajectory, or repeat the answer that it got before."""
        found = self._live(worker, ask)
        if found is None:
            return
        group, episode = found
        episode.go_on(self.state.awake_s)
        if (asked := episode.find(ask)) is not None:
            self._repeat(group, episode, asked, ask)
            return
        if episode.known and episode.heard == episode.known:
            self._diverged_in_a_row = 0
            self.state.accounts.counts["episodes/replayed"] += 1
        member = self._trajectory(group, episode, ask)
        member.give(ask)
        move_trajectory(member, "asked")
        episode.add(ask, begins=member.begins, now=self.state.awake_s)
        episode.note_saved(ask)
        self.state.accounts.given += ask.given
        if group.is_evaluation and group.state == "beginning":
            del self.state.beginnings.groups[group.id]
            self.evaluation.episodes.on_asked(group)
        if group.state == "generating":
            self.state.requeue(member)
        elif group.state == "beginning" and all(one.asked for one in group.episodes):
            trials.prepared(self.state, group)

    def _trajectory(self, group: Group, episode: Episode, ask: Ask) -> Trajectory:
        """The trajectory that an ask continues; it is made if this is its first ask."""
        if ask.number:
            return group.members[ask.member]
        if ask.member == episode.number:
            group.members[ask.member].is_trained = ask.is_trained
            return group.members[ask.member]
        self.state.accounts.counts["episodes/forks"] += ask.is_trained
        if ask.is_trained and ask.cause:
            self.state.accounts.counts[f"episodes/forks_{ask.cause}"] += 1
        return group.fork(episode, ask.member, is_trained=ask.is_trained)

    def on_ended(self, worker: AgentWorker, end: EpisodeEnded) -> None:
        """An agent's function has returned: its reward counts, and the turns that are finished."""
        found = self._live(worker, end)
        if found is None:
            return
        group, episode = found
        if not episode.is_caught_up:
            self._diverged(group, episode)
            return
        episode.conclude(self.state.awake_s, end.awaited)
        turns.leave_worker(self.state, episode)
        self._failures_in_a_row = self._left_out_in_a_row = 0
        limit = self.state.config.agent.on_limit if end.ending != "stop" else "score"
        if limit == "mask" and group.is_evaluation:  # an evaluation counts every response
            limit = "zero"
        episode.reward = 0.0 if limit == "zero" else end.reward[0] if end.reward else None
        episode.is_masked = limit == "mask"
        episode.parts = end.parts if limit == "score" else ()
        episode.turn_rewards = end.turn_rewards if limit == "score" else ()
        episode.earned = end.earned
        episode.noted = end.metrics
        episode.has_talk = bool(end.talk)
        self._end(group, episode, end.ending)

    def on_failed(self, worker: AgentWorker, failure: EpisodeFailed) -> None:
        """An environment or a function failed: run the episode again or give its prompt up; no reward."""
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
        told += f"\nThe row was: {failure.row}"
        if failure.kind == "limit":
            self._leave_out(group, told)
        else:
            self._failed(group, episode, told)

    def _live(
        self, worker: AgentWorker, message: Ask | EpisodeEnded | EpisodeFailed
    ) -> tuple[Group, Episode] | None:
        """The group and episode that a message is about; None if the episode was ended meanwhile."""
        if worker.episodes.get((message.group, message.episode)) != message.trial:
            return None
        group = self.state.groups[message.group]
        return group, group.episodes[message.episode]

    def _repeat(self, group: Group, episode: Episode, asked: AskedTurn, ask: Ask) -> None:
        """Answer a repeated ask of a function that runs again with the turn that answered it before."""
        if not asked.is_repeated_by(ask):
            self._diverged(group, episode)
            return
        episode.hear(asked, self.state.awake_s)
        episode.note_saved(ask)
        if not asked.is_open:
            self.state.accounts.counts["episodes/replayed_turns"] += 1
            turns.answer(self.state, group, episode, asked)

    def _diverged(self, group: Group, episode: Episode) -> None:
        """The function asked something else than in its last run: begin the episode again from its start."""
        self.state.accounts.counts["episodes/diverged"] += 1
        turns.call_off(self.state, [episode], "it asked something else than before; it begins anew")
        self._diverged_in_a_row += 1
        if self._diverged_in_a_row >= MAX_DIVERGED and self.state.beginnings.is_replaying:
            self.state.beginnings.is_replaying = False
            self.state.warn_once(
                f"replay {self.state.epoch}",
                f"{MAX_DIVERGED} episodes in a row asked something else when they were run again: "
                "the environment is not a function of policy.seed. From now on the episodes of a lost worker "
                "begin anew, as with `agent.replay: never`.",
            )
        trials.begin_anew(self.state, group, episode)

    # -- how they end -----------------------------------------------------------------------------------

    def expire(self) -> None:
        """End episodes whose environments exceeded their deadline."""
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
        # else the start or the replay timed out, or nothing was sampled that could be trained
        is_answered = bool(episode.trained_turns) and episode.is_caught_up
        episode.conclude(self.state.awake_s, ())
        turns.call_off(self.state, [episode], told)
        if counts["episodes/timeouts"] > max(1, WARN_TIMEOUTS * self.state.beginnings.count):
            text = f"Episode {episode.number} of prompt {group.id}: {told}. "
            text += f"{counts['episodes/timeouts']} of {self.state.beginnings.count} episodes were, so far."
            self.state.warn_counted("timeouts", text)
        if agent.on_timeout == "score" and is_answered:
            episode.reward = 0.0
            self._end(group, episode, "timeout")
        else:
            self._failed(group, episode, f"Episode {episode.number} of prompt {group.id}: {told}")

    def _end(self, group: Group, episode: Episode, ending: Ending) -> None:
        """End an episode; it has its reward, or the reward function will score it."""
        state = self.state
        episode.ending = ending
        self.ended += 1
        state.accounts.counts[f"ending/{ending}"] += 1
        for asked in list(episode.open.values()):
            member = group.members[asked.ask.member]
            trials.call_back(self.state, group, member)
            episode.take_back(asked)
            state.accounts.drop(member.take_turn_back())
        group.finished_lengths.append(sum(member.response_tokens for member in group.of(episode)))
        for member in group.of(episode):
            self._end_trajectory(group, episode, member)
        recall.complete(state, group)
        if not episode.is_masked:
            self._masked.reset()
        elif group.state == GONE:
            self._masked.count(
                f"had only episodes that came to a limit, the last to `{ending}`, and agent.on_limit is "
                "`mask`: nothing is left to train on. Raise the limit, or set `score`"
            )

    def _end_trajectory(self, group: Group, episode: Episode, member: Trajectory) -> None:
        """Finish a trajectory of an ended episode if it is to be trained; else drop it."""
        if member.turns and member.is_trained and not episode.is_masked:
            group.finish_member(member, "stop" if episode.ending == "stop" else "length")
        elif member.state != "dropped":
            move_trajectory(member, "dropped")
            self.state.accounts.mask(member.response_tokens)

    def _failed(self, group: Group, episode: Episode, told: str) -> None:
        """Begin an episode again, or set its prompt aside; end the run if nothing ever works."""
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
            trials.leave_preparation(self.state, group)
            reason = f"an episode failed {episode.failures} times: {told}"
            self.purposes.of(group).on_failed(group, reason)
            return
        state.accounts.counts["episodes/retried"] += 1
        trials.begin_anew(self.state, group, episode)

    def _leave_out(self, group: Group, told: str) -> None:
        """Replace a prompt that no policy can answer; end the run if all prompts are like it."""
        if not group.is_evaluation:
            self._left_out_in_a_row += 1
        if self._left_out_in_a_row >= MAX_LEFT_OUT:
            count = f"{self._left_out_in_a_row} prompts in a row reached a limit before a first turn"
            self.state.end(f"{count}. The last: {told}", is_success=False)
        trials.leave_preparation(self.state, group)
        self.purposes.of(group).on_failed(group, told)

    # -- invariants -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every episode is at one worker, waits for one, or has ended. Raises: AssertionError."""
        at = {key: worker.peer for worker in self.state.registry.agents() for key in worker.episodes}
        for group in self._groups():
            is_preparing = group.state == "beginning"
            assert is_preparing == (group.id in self.state.beginnings.groups), (
                f"group {group.id} is {group.state}"
            )
            for episode in group.episodes:
                self._check(group, episode, at)
        left = [id for id in self.state.beginnings.groups if id not in self.state.groups]
        assert not left, f"groups that have left are being prepared: {left}"
        there = {key for key in at if key[0] in self.state.groups}
        assert len(there) == len(at), f"episodes of groups that have left: {at}"

    def _check(self, group: Group, episode: Episode, at: dict[tuple[int, int], str]) -> None:
        here = f"episode {episode.key}"
        assert at.get((group.id, episode.number)) == episode.peer, f"{here} is not at {episode.peer}"
        if group.state in LIVE_GROUPS and episode.is_unbegun:
            assert (group.id, episode.number) in self.state.unbegun, f"{here} is nowhere"
        if group.state not in LIVE_GROUPS:
            assert episode.peer is None, f"{here} runs, and its group is {group.state}"
            return
        has_word = episode.peer is not None and not episode.awaits_policy
        assert has_word == (episode.until is not None), f"{here} waits until {episode.until}"
        for member in group.of(episode):
            is_open = member.id.member in episode.open
            assert is_open == (member.state in ("queued", "running")), f"{here}: {member.id}, {member.state}"

    def _groups(self) -> Iterator[Group]:
        return (group for group in self.state.groups.values() if group.episodes and group.state != GONE)
