"""The rollout side of the core: admit, route, interrupt, pull, and take what comes back.

Invariants: a group starts only with a reservation in the ledger; a trajectory runs only at or above the
version of its newest token, and never below the version that its group was admitted under without the
ledger's leave; an instance that pulls gets no route until it has said Pulled; what an instance returns is
taken only from the attempt that runs there now.
Source: StaleFlow (arXiv 2601.12784), rollout coordinator: Route, Interrupt, Pull, Abort.
"""

from collections import deque

from controller.groups import Group, Trajectory
from controller.registry import Instance
from controller.state import RunState
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import (
    Abort,
    Close,
    Generated,
    GenerationFailed,
    InstanceStatus,
    Interrupt,
    Pull,
    Pulled,
    PullFailed,
    Ready,
    Route,
)
from strategies.admission import in_flight_groups
from strategies.routing import ROUTINGS
from strategies.select import select
from strategies.synchronization import SYNCHRONIZATIONS
from strategies.views import InstanceView, Settings, SyncView, WorkView

MAX_PULL_FAILURES = 3  # in a row; then the instance is closed, since it can never be useful again
MAX_GENERATION_FAILURES = 3  # of one group's members; then the prompt is set aside


class Coordination:
    """Places trajectories on instances."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        staleness = state.config.staleness
        self.route = select(staleness.routing, ROUTINGS)
        self.choose_pulls = select(staleness.synchronization, SYNCHRONIZATIONS)
        self.cap = in_flight_groups(
            staleness.in_flight_batches,
            max_staleness=staleness.max_staleness,
            batch_groups=state.config.trainer.batch_groups,
        )
        self.holds_nothing = staleness.in_flight_batches == "auto"
        self.waiting: deque[int] = deque()  # encoded groups that have not started, in the order of prompts
        self._failures: dict[int, int] = {}

    # -- what instances say -----------------------------------------------------------------------------

    def on_ready(self, instance: Instance, message: Ready) -> None:
        """An engine is built; it pulls before it samples."""
        instance.capacity, instance.kv_tokens = message.capacity, message.kv_tokens

    def on_status(self, instance: Instance, message: InstanceStatus) -> None:
        """Keep the newest load report."""
        if instance.status is None or message.sequence > instance.status.sequence:
            instance.status = message

    def on_generated(self, instance: Instance, message: Generated) -> list[Group]:
        """Take new tokens; returns the groups that are complete by them."""
        complete = []
        for delta in message.deltas:
            group = self.state.groups.get(delta.group)
            member = group.members[delta.member] if group and delta.member < len(group.members) else None
            expected = member is not None and member.expects(delta, instance.peer)
            self.state.accounts.take(delta.count, is_expected=expected)
            if not expected:
                continue
            assert group is not None
            assert member is not None
            member.extend(delta)
            instance.resident_tokens += delta.count
            if delta.ending:
                self._return(instance, member)
                if delta.ending == "interrupt":
                    self.state.queue.push(member, self.state.ledger.deadline(group.id))
                else:
                    member.state, member.ending = "finished", delta.ending
                    complete += [group] if group.is_complete else []
        return complete

    def on_failed(self, instance: Instance, message: GenerationFailed) -> None:
        """An engine gave one attempt up: try again, and set the prompt aside if it keeps failing."""
        group = self.state.groups.get(message.group)
        member = group.members[message.member] if group and message.member < len(group.members) else None
        if group is None or member is None or instance.running.get(member.id) != message.attempt:
            return
        self._return(instance, member)
        self.state.accounts.counts["generation_failures"] += 1
        self.state.warn_once("generation", f"Generation failed on {instance.name}: {message.reason}")
        self._failures[group.id] = self._failures.get(group.id, 0) + 1
        if self._failures[group.id] >= MAX_GENERATION_FAILURES:
            del self._failures[group.id]
            self.abort(group, "aborted")
        else:
            self.state.queue.push(member, self.state.ledger.deadline(group.id))

    def on_pulled(self, instance: Instance, message: Pulled) -> None:
        """The instance samples from the version that it was told to load."""
        if instance.pulling != message.policy_version:
            return
        instance.policy_version, instance.pulling, instance.pull_failures = message.policy_version, None, 0
        self.state.accounts.spend("pull", message.pull_s)

    def on_pull_failed(self, instance: Instance, message: PullFailed) -> None:
        """The instance stays at its version and tries again with the newest one."""
        if instance.pulling != message.policy_version:
            return
        instance.pulling = None
        instance.pull_failures += 1
        self.state.accounts.counts["pull_failures"] += 1
        self.state.warn_once(
            "pull", f"{instance.name} could not pull version {message.policy_version}: {message.reason}"
        )
        if instance.pull_failures >= MAX_PULL_FAILURES:
            reason = f"{MAX_PULL_FAILURES} pulls in a row failed, the last because: {message.reason}"
            self.state.send(instance.peer, Close(reason, is_fault=True))

    def on_lost(self, instance: Instance) -> None:
        """Its trajectories go on elsewhere, from the last token that it reported."""
        for id in list(instance.running):
            group = self.state.groups[id.group]
            member = group.members[id.member]
            self._return(instance, member)
            self.state.queue.push(member, self.state.ledger.deadline(group.id))

    # -- what the core wants ----------------------------------------------------------------------------

    def abort(self, group: Group, end: str) -> None:
        """Give a group up for good, wherever its members are; a fresh prompt takes its place by itself."""
        by_peer: dict[PeerId, list[tuple[int, int, int]]] = {}
        for member in group.members:
            if member.peer is not None:
                by_peer.setdefault(member.peer, []).append((*member.id, member.attempt))
                instance = self.state.registry.workers[member.peer]
                assert isinstance(instance, Instance)
                self._return(instance, member)
        for peer, attempts in by_peer.items():
            self.state.send(peer, Abort(tuple(attempts)))
        self.state.remove_group(group, end)

    def synchronize(self) -> None:
        """Bring the chosen instances to the newest version: interrupt what runs, then pull."""
        newest = self.state.versions.newest
        if newest is None:
            return
        partial = self.state.config.staleness.partial_rollout
        behind = [
            instance
            for instance in self.state.registry.instances()
            if instance.ready
            and instance.pulling is None
            and instance.policy_version < newest.policy_version
            and (partial or not instance.running)
        ]
        if not behind:
            return
        views = [
            SyncView(i, instance.policy_version, len(instance.running), instance.resident_tokens)
            for i, instance in enumerate(behind)
        ]
        for index in self.choose_pulls(views, self._settings()):
            instance = behind[index]
            if instance.running:
                attempts = tuple((*id, attempt) for id, attempt in instance.running.items())
                self.state.send(instance.peer, Interrupt(attempts))
            instance.pulling = newest.policy_version
            self.state.send(instance.peer, Pull(newest.policy_version, newest.location, newest.digest))

    def dispatch(self) -> None:
        """Route what waits: begun work by deadline, then fresh groups as far as the ledger and the
        cap allow."""
        instances = self._routable()
        views = [self._view(i, instance) for i, instance in enumerate(instances)]
        while instances and (work := self._next()) is not None:
            trajectory, is_fresh = work
            index = self._choose(trajectory, is_fresh, instances, views)
            if index is None:
                return
            if is_fresh:
                self._start(self.waiting.popleft(), instances[index].policy_version)
            self._route(self.state.queue.pop(), instances[index])
            views[index] = self._view(index, instances[index])

    # -- inside -----------------------------------------------------------------------------------------

    def _settings(self) -> Settings:
        newest = self.state.versions.newest
        return Settings(self.state.config.staleness.mu, newest.policy_version if newest else 0)

    def _routable(self) -> list[Instance]:
        """Instances that take work now; without partial rollout one that ought to pull first runs empty."""
        newest = self.state.versions.newest
        partial = self.state.config.staleness.partial_rollout
        return [
            instance
            for instance in self.state.registry.instances()
            if instance.is_routable
            and (partial or newest is None or instance.policy_version == newest.policy_version)
        ]

    def _next(self) -> tuple[Trajectory, bool] | None:
        """The trajectory to route next, and whether it opens a fresh group."""
        queued = self.state.queue.peek()
        if queued is not None:
            return queued, False
        if not self.waiting or self._in_flight() >= self.cap:
            return None
        group = self.state.groups[self.waiting[0]]
        return Trajectory(TrajectoryId(group.id, 0), group.prompt_tokens), True

    def _in_flight(self) -> int:
        """Groups that count against the cap: until the version that they made is out, since a group that
        starts while the trainer works carries the old version and wastes one deadline (SIMULATION.md
        section 5)."""
        newest = self.state.versions.newest
        published = newest.policy_version if newest else 0
        ledger = self.state.ledger
        held = 0 if self.holds_nothing else ledger.train_version - published
        return len(ledger) + ledger.batch_groups * held

    def _choose(
        self, trajectory: Trajectory, is_fresh: bool, instances: list[Instance], views: list[InstanceView]
    ) -> int | None:
        group = self.state.groups[trajectory.id.group]
        may = [
            view
            for view, instance in zip(views, instances, strict=True)
            if self._may_run(group, trajectory, is_fresh, instance.policy_version)
        ]
        if not may:
            return None
        minimum = trajectory.newest_version if not is_fresh else 0
        work = WorkView(group.id, trajectory.resident_tokens, minimum, is_fresh)
        index = self.route(work, may, self._settings())
        assert index is None or any(view.index == index for view in may), (
            f"routing chose {index}, which may not run it"
        )
        return index

    def _may_run(self, group: Group, trajectory: Trajectory, is_fresh: bool, policy_version: int) -> bool:
        """Version rules: no token older than the one before it, and no start that the ledger has no
        room for."""
        if is_fresh:
            return self.state.ledger.can_reserve(policy_version)
        if trajectory.newest_version >= 0:
            return policy_version >= trajectory.newest_version
        return self.state.ledger.can_lower(group.id, policy_version)

    def _start(self, group_id: int, policy_version: int) -> None:
        group = self.state.groups[group_id]
        self.state.ledger.reserve(group.id, policy_version)
        group.state, group.policy_version = "generating", policy_version
        group.make_members(self.state.config.rollout.group_size)
        deadline = self.state.ledger.deadline(group.id)
        for member in group.members:
            self.state.queue.push(member, deadline)

    def _route(self, trajectory: Trajectory, instance: Instance) -> None:
        group = self.state.groups[trajectory.id.group]
        assert group.policy_version is not None
        if trajectory.newest_version < 0 and instance.policy_version < group.policy_version:
            self.state.ledger.lower(group.id, instance.policy_version)
            group.policy_version = instance.policy_version
        trajectory.attempt += 1
        trajectory.state, trajectory.peer, trajectory.reported = "running", instance.peer, 0
        instance.running[trajectory.id] = trajectory.attempt
        instance.resident_tokens += trajectory.resident_tokens
        budget = self.state.config.rollout.max_response_tokens - trajectory.response_tokens
        segments = tuple(trajectory.segments)
        message = Route(*trajectory.id, trajectory.attempt, self.state.seed(trajectory), budget, segments)
        self.state.send(instance.peer, message)

    def _return(self, instance: Instance, trajectory: Trajectory) -> None:
        """The trajectory is no longer on the instance; the caller says what becomes of it."""
        del instance.running[trajectory.id]
        instance.resident_tokens -= trajectory.resident_tokens
        trajectory.state, trajectory.peer = "queued", None

    def _view(self, index: int, instance: Instance) -> InstanceView:
        return InstanceView(
            index,
            instance.policy_version,
            len(instance.running),
            instance.resident_tokens,
            instance.capacity,
            instance.kv_tokens,
            frozenset(id.group for id in instance.running),
        )
