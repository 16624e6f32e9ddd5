"""Handles reports of rollout instances: new tokens, failures, pulls and load.

Invariants: tokens are accepted only from the attempt that runs at that instance now; a group is complete with
exactly as many finished trajectories as are trained, and its spare ones are dropped at once; reports about an
aborted group change nothing.
Source: StaleFlow (arXiv 2601.12784), rollout coordinator: Route, Interrupt, Pull, Abort.
"""

from collections.abc import Sequence

from controller.core.effects import recall
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.effects.purposes import Purposes
from controller.core.events import PeerFaulted
from controller.core.state.agents import homes
from controller.core.state.groups import Group, Trajectory
from controller.core.state.progress.columns import Given
from controller.core.state.recent_failures import Failure
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.told import Key, ToldInstance
from protocol.ids import TrajectoryId
from protocol.messages import (
    Generated,
    GenerationFailed,
    InstanceStatus,
    Interrupt,
    Pulled,
    PullFailed,
    Ready,
)
from strategies.cost_model import step_latency

MAX_PULL_FAILURES = 3  # in a row; then the instance is closed, since it cannot get new weights
MAX_GENERATION_FAILURES = 3  # of one response; then its prompt is set aside
URGENT = 0.4  # a trajectory is urgent if it needs this share of the time until its group is due
UNBOUNDED = 1 << 30
LOOKS = 16  # least number of predictions for a response of full length, evenly spread
MOST_LOOKS = 128  # most predictions for a response that keeps exceeding them
LEAST_KV_SHARE, KV_SHARE_DOWN, KV_SHARE_UP = 0.5, 0.9, 0.01  # per report with, or without, a preemption


class InstanceReports:
    """Handles the reports of instances."""

    def __init__(self, state: RunState, evaluation: EvaluationRounds, purposes: Purposes) -> None:
        self.state = state
        self.evaluation, self.purposes = evaluation, purposes
        self._failures: dict[TrajectoryId, int] = {}  # of responses in the system

    # -- messages of instances --------------------------------------------------------------------------

    def on_ready(self, instance: Instance, message: Ready) -> None:
        """An instance is ready; it pulls weights before it samples."""
        self.state.registry.equip(instance, capacity=message.capacity, kv_tokens=message.kv_tokens)
        if self.state.config.staleness.cost_model == "online":
            instance.fit = self.state.instance_kinds.join(instance.id)

    def on_status(self, instance: Instance, message: InstanceStatus) -> None:
        """Keep the newest load report, and learn the speed of the instance from it."""
        before = instance.status
        if before is not None and message.sequence <= before.sequence:
            return
        instance.status = message
        accounts = self.state.accounts
        accounts.prefilled += message.prefill_tokens - (before.prefill_tokens if before else 0)
        accounts.reused += message.reused_tokens - (before.reused_tokens if before else 0)
        if before is None:
            return
        if instance.fit is not None:
            self._learn(instance, before, message)
        if message.preemptions > before.preemptions:
            instance.kv_share = max(LEAST_KV_SHARE, instance.kv_share * KV_SHARE_DOWN)
            self.state.accounts.counts["preemptions"] += message.preemptions - before.preemptions
        else:
            instance.kv_share = min(1.0, instance.kv_share + KV_SHARE_UP)
        self.state.registry.changed[instance.peer] = None

    def on_generated(self, instance: Instance, message: Generated) -> None:
        """Take new tokens, and send groups that they complete to scoring."""
        told, pace_s = instance.told, self._pace_s(instance)
        assert isinstance(told, ToldInstance), f"{instance.name} is told what to generate"
        first = 0
        if told.lead is not None:
            first = told.lead.deltas
            told.columns.heard_at = self.state.awake_s
            for member in told.columns.due(told.lead):
                self._predict_again(instance, self.state.groups[member.id.group], member, pace_s)
        steady, told.lead, told.steady = told.steady, None, []
        if steady:
            lost = self._take_steady(instance, message, steady, pace_s)
        else:
            lost = self._take(instance, message, first, pace_s) if first < len(message.groups) else 0
        taken = sum(message.counts) - lost
        self.state.registry.grow(instance, taken)
        self.state.accounts.take(taken)
        self.state.accounts.take_late(lost)

    def _take(self, instance: Instance, message: Generated, first: int, pace_s: float) -> int:
        """Take the deltas from number `first` on; returns the number of late tokens."""
        lost, now, peer = 0, self.state.awake_s, instance.peer
        find = self.state.groups.get
        for group_id, number, attempt, start, count, policy_version, ending in message.rows_from(first):
            group = find(group_id)
            member = (
                None if group is None else group.take(number, attempt, start, count, policy_version, peer)
            )
            if group is None or member is None:
                lost += count
                continue
            if count and not member.is_called_back:
                member.since = now
            if member.response_tokens >= member.next_prediction_at:
                if ending:
                    self.state.keep_lengths_up(member)
                else:
                    self._predict_again(instance, group, member, pace_s)
            if ending:
                self.state.registry.take(instance, member)
                if group.episodes and ending != "interrupt":
                    homes.park(instance, member)
                recall.end_attempt(self.state, group, member, ending)
            elif count:
                _line_up(instance, (group_id, number, attempt), member, policy_version)
        return lost

    def _take_steady(
        self, instance: Instance, message: Generated, attempts: list[Given], pace_s: float
    ) -> int:
        """As `_take`, for a report that only continues attempts; these join the columns of the instance."""
        now, peer, policy_version = self.state.awake_s, instance.peer, message.policy_versions[0]
        find, lost = self.state.groups.get, 0
        columns = (attempts, message.groups, message.members, message.attempts, message.starts)
        for given, id, number, attempt, start, count in zip(*columns, message.counts, strict=True):
            member = given.member
            if (
                member is None
                or member.peer != peer
                or member.attempt != attempt
                or member.reported != start
                or not member.go_on(attempt, policy_version, count)
            ):
                group = find(id)
                member = (
                    None if group is None else group.take(number, attempt, start, count, policy_version, peer)
                )
                given.member = member
                if member is None:
                    lost += count
                    continue
            if not member.is_called_back:
                member.since = now
            if member.response_tokens >= member.next_prediction_at:
                self._predict_again(instance, self.state.groups[id], member, pace_s)
            _line_up(instance, (id, number, attempt), member, policy_version)
        return lost

    def on_failed(self, instance: Instance, message: GenerationFailed) -> None:
        """An engine gave one attempt up: try again, and set the prompt aside if it keeps failing."""
        group = self.state.groups.get(message.group)
        member = group.members[message.member] if group and message.member < len(group.members) else None
        if group is None or member is None or instance.running.get(member.id) != message.attempt:
            return
        self.state.registry.take(instance, member)
        self.state.accounts.counts["generation_failures"] += 1
        self.state.warn_once("generation", f"Generation failed on {instance.name}: {message.reason}")
        if not self._has_failed_too_often(group, member, message.reason):
            self.state.requeue(member)

    def on_silent(self, instance: Instance, members: Sequence[Trajectory]) -> None:
        """Move trajectories that got no token within `limits.token_s` to other instances.

        A prompt whose response is moved too often is set aside.
        """
        limit = f"limits.token_s allows {self.state.config.limits.token_s:g} s"
        text = f"{members[0].id} got no token on {instance.name}; {limit}, so it goes on elsewhere."
        self.state.warn_counted(f"silent {instance.name}", text)
        for member in members:
            group = self.state.groups.get(member.id.group)
            if group is None or member.peer != instance.peer:
                continue  # a sibling has had its group set aside
            self.state.accounts.counts["limits/silent"] += 1
            if not self._has_failed_too_often(group, member, f"no token came in time, {limit}"):
                member.moved_from = instance.peer
        left = [member for member in members if member.peer == instance.peer]
        for peer, attempts in recall.by_peer(left).items():
            self.state.send(peer, Interrupt(attempts))

    def _has_failed_too_often(self, group: Group, member: Trajectory, reason: str) -> bool:
        """Count a failure of a response, and set its prompt aside if it was one too many.

        One failure of an instance fails all siblings there, and counts once for each of them.
        """
        known = self._failures = {id: n for id, n in self._failures.items() if id.group in self.state.groups}
        known[member.id] = known.get(member.id, 0) + 1
        if known[member.id] < MAX_GENERATION_FAILURES:
            return False
        reason = f"generation failed {MAX_GENERATION_FAILURES} times: {reason}"
        self.purposes.of(group).on_failed(group, reason)
        return True

    def on_pulled(self, instance: Instance, message: Pulled) -> None:
        """The instance samples from the version that it was told to load."""
        if instance.pulling != message.policy_version:
            return
        self.state.registry.has_pulled(instance, keeps_kv=self.state.config.staleness.keep_kv)
        instance.pull_failures, instance.pull_s, instance.unreachable_since = 0, message.pull_s, None
        self.state.versions.pulled(message.policy_version)
        self.state.accounts.spend("pull", message.pull_s)
        if message.refused:
            self.state.accounts.counts["weights/chunks_refused"] += message.refused
            text = (
                f"{instance.name} pulled {message.refused} chunks of weights again: their checksum was wrong."
            )
            self.state.warn_once("chunks", f"{text} If it goes on, look at the network and the memory.")

    def on_pull_failed(
        self, instance: Instance, message: PullFailed, *, is_awaited: bool
    ) -> PeerFaulted | None:
        """Retry with the newest version; returns the fault of the peer to blame after too many failures.

        The retry comes at once or, if the trainer that published the version died (`is_awaited`), when it is
        published again. The last try comes a lease later, by when the death of a trainer would be known.
        Where no source is reached, though the version before was, a network may be to blame: such a pull is
        tried once a lease, for as long as one pull may take.
        """
        if instance.pulling != message.policy_version:
            return None
        instance.pulling, tries_left = None, MAX_PULL_FAILURES
        recall.take_back_promised(self.state, instance)
        if is_awaited:
            self.state.versions.lose(message.policy_version)
        else:
            tries_left = self._tries_left(instance, message)
            failure = Failure(self.state.awake_s, instance.name, message.reason)
            self.state.failures.pulls.add(failure, fleet=self.state.registry.ready_instances)
            if tries_left == 1:
                until = self.state.now + self.state.config.controller.lease_s
                self.state.versions.rests.add(instance.peer, message.policy_version, until)
        self.state.registry.changed[instance.peer] = None
        self.state.accounts.counts["pull_failures"] += 1
        self.state.warn_once(
            "pull", f"{instance.name} could not pull version {message.policy_version}: {message.reason}"
        )
        is_spent = tries_left <= (0 if instance.unreachable_since is not None else 1)
        if is_spent and self._is_of_evaluation_alone(message):
            self._give_up_evaluation(f"could not be pulled: {message.reason}")
        return self._at_fault(instance, message) if tries_left <= 0 else None

    def _tries_left(self, instance: Instance, message: PullFailed) -> int:
        """Count a failed pull; returns how often the instance may still try."""
        if not message.is_unreachable or not message.policy_version:  # the first one: an address is wrong
            instance.pull_failures += 1
            return MAX_PULL_FAILURES - instance.pull_failures
        if instance.unreachable_since is None:
            instance.unreachable_since = self.state.awake_s
            return MAX_PULL_FAILURES - 1
        out_s = self.state.awake_s - instance.unreachable_since
        return 1 if out_s < self.state.config.limits.pull_s else 0

    def _at_fault(self, instance: Instance, message: PullFailed) -> PeerFaulted:
        """The peer to blame for failing pulls: the instance, or the trainer if no instance could pull."""
        version, trainer = message.policy_version, self.state.registry.trainer()
        others = [one for one in self.state.registry.instances() if one.ready and one is not instance]
        is_nobodys = bool(others) and all(other.pull_failures for other in others)
        if trainer is None or not is_nobodys or self.state.versions.was_pulled(version):
            times = f"{MAX_PULL_FAILURES} pulls in a row failed"
            if instance.pull_failures < MAX_PULL_FAILURES:
                times = f"No source was reached for {self.state.config.limits.pull_s:g} s (limits.pull_s)"
            return PeerFaulted(instance.peer, f"{times}, the last because: {message.reason}")
        for one in (instance, *others):
            one.pull_failures = 0
        reason = f"No instance could pull version {version}, which it has published: {message.reason}"
        return PeerFaulted(trainer.peer, reason)

    def _is_of_evaluation_alone(self, message: PullFailed) -> bool:
        """Whether only an exact evaluation needs this version, and no instance has it."""
        found, newest, version = self.evaluation.round, self.state.versions.newest, message.policy_version
        if found is None or not found.is_exact or found.policy_version != version:
            return False
        is_newest = newest is not None and newest.policy_version == version
        return not is_newest and all(i.next_version != version for i in self.state.registry.instances())

    def give_up_lost_evaluation(self) -> None:
        """End an exact evaluation whose version was lost with its trainer and will not be made again."""
        found = self.evaluation.round
        if found is None or not self.evaluation.is_lost:
            return
        if all(instance.next_version != found.policy_version for instance in self.state.registry.instances()):
            self._give_up_evaluation("was lost with its trainer, which went on from a newer one.")

    def _give_up_evaluation(self, reason: str) -> None:
        """Fail the open prompts of an exact evaluation whose version cannot be pulled any more."""
        assert self.evaluation.round is not None
        text = f"version {self.evaluation.round.policy_version} {reason}"
        is_agent = self.state.config.agent.is_on
        unfinished = ("encoding", "beginning", "generating") if is_agent else ("generating",)
        for group in [group for group in self.state.groups.values() if group.is_evaluation]:
            if group.state in unfinished:
                self.evaluation.on_failed(group, text)

    # -- inside -----------------------------------------------------------------------------------------

    def _learn(self, instance: Instance, before: InstanceStatus, after: InstanceStatus) -> None:
        """Update the cost model of the instance and of instances like it."""
        registry, kinds = self.state.registry, self.state.instance_kinds
        known = instance.fit.coefficients if instance.fit else None
        instance.fit = kinds.observe(instance.id, before, after)
        if instance.fit.coefficients is not known:
            for number in kinds.like(instance.id):
                registry.changed[registry.instance(number).peer] = None

    def _predict_again(self, instance: Instance, group: Group, member: Trajectory, pace_s: float) -> None:
        """Predict the length of a response again, and whether it will be finished in time."""
        had = member.response_tokens
        at_end = self.state.expected_tokens(group, member)
        is_urgent = (at_end - had) * pace_s > self._steps_left(group)
        self.state.registry.expect(instance, member, expected=at_end, is_urgent=is_urgent)
        most = self.state.config.rollout.max_response_tokens
        soonest, latest = had + max(1, most // MOST_LOOKS), had + max(1, most // LOOKS)
        next_at = at_end if at_end > soonest else soonest
        member.next_prediction_at = next_at if next_at < latest else latest

    def _steps_left(self, group: Group) -> int:
        """Train steps that may begin until the group is due."""
        if group.state != "generating" or group.is_evaluation:
            return UNBOUNDED
        return self.state.ledger.deadline(group.id) - self.state.ledger.train_version + 1

    def _pace_s(self, instance: Instance) -> float:
        """Seconds per step of the instance, over URGENT times the mean time between two train steps."""
        period_s = self.state.pace.period_s
        if period_s is None:
            return 0.0
        c = instance.fit.coefficients if instance.fit else self.state.coefficients
        step_s = step_latency(c, max(1, len(instance.running)), instance.resident_tokens)
        return step_s / (URGENT * period_s)


def _line_up(instance: Instance, key: Key, member: Trajectory, policy_version: int) -> None:
    """Keep the progress of an attempt in the columns of its instance from now on."""
    told = instance.told
    assert isinstance(told, ToldInstance), f"{instance.name} is told what to generate"
    given = told.given.get(key)
    if given is None or not given.most or given.known != member.reported:
        return
    given.member = member
    told.columns.add(given, key, policy_version)
