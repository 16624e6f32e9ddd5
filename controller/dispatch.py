"""Which trajectory starts where: admission, reservation, routing.

Invariants: a group starts only with a reservation in the ledger; a trajectory runs only at or above the
version of its newest token, and never below the version that its group was admitted under without the
ledger's leave; a route to an instance that pulls stands behind the pull; begun work goes before fresh work;
routes per step are bounded; a decision looks at a few instances, however many there are.
Source: StaleFlow (arXiv 2601.12784), routing over a queue by trajectory version.
"""

from collections import deque
from typing import Any

from controller.groups import Group, Trajectory
from controller.registry import Instance
from controller.shortlist import Shortlist
from controller.state import RunState
from protocol.ids import TrajectoryId
from protocol.messages import Route
from strategies.admission import window_rule
from strategies.routing import Order
from strategies.select import select
from strategies.views import AdmissionView, InstanceView, WorkView

ROUTES_PER_STEP = 128  # then other events have their turn
SHORTLISTED = 4  # instances of each version that routing is shown
SIBLINGS = 2  # and so many that hold a member of the same group


class Dispatch:
    """Places trajectories on instances."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        staleness = state.config.staleness
        self.route = select("routing", staleness.routing)
        self._order: Order | None = getattr(self.route, "order", None)
        self.admit = select("admission", staleness.admission)
        if staleness.admission == "window":
            self.admit = window_rule(staleness.in_flight_batches)
        self.waiting: deque[int] = deque()  # encoded groups that have not started, in the order of prompts
        self.is_cut = False  # the last step ended at ROUTES_PER_STEP
        self._shortlist = Shortlist()
        self._views: dict[int, InstanceView] = {}
        self._gated_s, self._gated_since = 0.0, None
        self._refused: tuple[Any, ...] | None = None  # what found no place, and when it may be tried again
        self._settled: tuple[Any, ...] | None = None  # the situation in which nothing more could be routed

    def run(self) -> None:
        """Route what waits: begun work by deadline, then fresh groups as far as ledger and admission
        allow."""
        if not self.state.registry.changed and self._situation() == self._settled:
            return  # nothing could be routed, and nothing has changed since
        changed = self._refresh()
        self.is_cut = False
        self._count_gated()
        self._settled = None
        self._route(changed)
        if not self.is_cut:
            self._settled = self._situation()

    def _route(self, changed: list[int]) -> None:
        """`changed`: the instances whose load changed since the last look."""
        for _ in range(ROUTES_PER_STEP):
            work = self._next()
            if work is None:
                return
            trajectory, is_fresh = work
            moment = (trajectory.id, trajectory.attempt, *self._moment())
            only = changed if moment == self._refused else None
            chosen = None if only == [] else self._choose(trajectory, is_fresh, only)
            if chosen is None:
                self._refused = moment
                self._gated_since = self.state.now if is_fresh else None
                return
            self._refused = None
            if is_fresh:
                trajectory = self._start(self.waiting.popleft(), chosen.next_version)
            self.state.queue.remove(trajectory)
            self._place(trajectory, chosen)
            changed = self._refresh()
        self.is_cut = True

    def take_gated_s(self) -> float:
        """Seconds since the last call in which a fresh group that was admitted found no instance."""
        self._count_gated()
        gated, self._gated_s = self._gated_s, 0.0
        return gated

    def _count_gated(self) -> None:
        if self._gated_since is not None:
            self._gated_s += self.state.now - self._gated_since
            self._gated_since = None

    def admissible(self) -> int:
        """Groups that may start now under the newest version."""
        newest = self.state.versions.newest
        if newest is None or not self.waiting:
            return 0
        room = min(len(self.waiting), self.admit(self.admission_view(), self._batches))
        return max(0, min(room, self.state.ledger.headroom(newest.policy_version)))

    def admission_view(self) -> AdmissionView:
        """What admission sees."""
        state, ledger = self.state, self.state.ledger
        newest = state.versions.newest
        return AdmissionView(
            ledger.max_staleness,
            ledger.batch_groups,
            ledger.train_version,
            newest.policy_version if newest else 0,
            ledger.reserved,
            ledger.occupied,
            state.started,
            state.pulled_version,
            state.started - state.started_at_pull,
            state.in_system_at_pull,
            ledger.spare_groups,
            state.cap,
            state.strategy_settings.is_tail_bound,
        )

    def settled_views(self) -> list[InstanceView]:
        """All instances that could take work now and are not pulling, as of the last dispatch."""
        instance = self.state.registry.instance
        return [view for number, view in self._views.items() if instance(number).pulling is None]

    def view(self, instance: Instance) -> InstanceView:
        """An instance as strategies see it."""
        return InstanceView(
            instance.number,
            instance.next_version,
            len(instance.running),
            instance.resident_tokens,
            instance.capacity,
            int(instance.kv_tokens * instance.kv_share),
            instance.expected_tokens,
            instance.fit.coefficients if instance.fit else self.state.coefficients,
            urgent=instance.urgent,
            waiting=instance.status.waiting if instance.status else 0,
        )

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _batches(self) -> float | str:
        return self.state.config.staleness.in_flight_batches

    def _moment(self) -> tuple[int, int, int]:
        """Changes whenever something may have become possible that no single instance's load tells."""
        newest = self.state.versions.newest
        ledger = self.state.ledger
        return len(ledger), ledger.train_version, newest.policy_version if newest else -1

    def _situation(self) -> tuple[Any, ...]:
        """Whatever decides, instances apart, whether something more may be routed."""
        state, ledger, newest = self.state, self.state.ledger, self.state.versions.newest
        return (
            state.queue.pushed,
            len(state.queue),
            len(self.waiting),
            ledger.reserved,
            ledger.occupied,
            ledger.train_version,
            newest.policy_version if newest else -1,
            state.started,
            state.pulled_version,
            state.cap,
            state.strategy_settings,
        )

    def _refresh(self) -> list[int]:
        """Bring the views of changed instances up to date; returns their numbers."""
        registry = self.state.registry
        changed = []
        settings = self.state.strategy_settings
        order = self._order
        for peer in registry.changed:
            instance = registry.workers[peer]
            assert isinstance(instance, Instance)
            changed.append(instance.number)
            if not self.is_routable(instance):
                self._shortlist.drop(instance.number)
                self._views.pop(instance.number, None)
                continue
            view = self._views[instance.number] = self.view(instance)
            is_full = view.running >= view.capacity
            key = (is_full, order(view, settings) if order else 0)
            self._shortlist.put(instance.number, instance.next_version, key)
        registry.changed.clear()
        return changed

    def forget(self, instance: Instance) -> None:
        """The instance is gone."""
        self._shortlist.drop(instance.number)
        self._views.pop(instance.number, None)

    def is_routable(self, instance: Instance) -> bool:
        """Whether it takes work now; without partial rollout one that ought to pull first runs empty."""
        newest = self.state.versions.newest
        staleness = self.state.config.staleness
        may_stay = staleness.partial_rollout or staleness.keep_kv
        return instance.is_routable and (
            may_stay or newest is None or instance.next_version == newest.policy_version
        )

    def _next(self) -> tuple[Trajectory, bool] | None:
        """The trajectory to route next, and whether it opens a fresh group."""
        versions = self._shortlist.versions()
        if not versions:
            return None
        queued = self.state.queue.peek(versions[0])
        if queued is not None:
            return queued, False
        if not self.waiting or self.admit(self.admission_view(), self._batches) <= 0:
            return None
        group = self.state.groups[self.waiting[0]]
        return Trajectory(TrajectoryId(group.id, 0), group.prompt_tokens), True

    def _choose(self, trajectory: Trajectory, is_fresh: bool, only: list[int] | None) -> Instance | None:
        group = self.state.groups[trajectory.id.group]
        peers = dict.fromkeys([member.peer for member in group.members])  # a dict keeps their order
        siblings = [self._number(peer) for peer in peers if peer is not None]
        numbers = self._candidates(trajectory, is_fresh, siblings) if only is None else only
        away = self._number(trajectory.left)
        may_run: dict[int, bool] = {}
        shown = []
        for number in numbers:
            view = self._views.get(number)
            if view is None:
                continue
            version = view.policy_version
            if version not in may_run:
                may_run[version] = self._may_run(group, trajectory, is_fresh, version)
            if may_run[version]:
                shown.append(view._replace(has_sibling=True) if number in siblings else view)
        if not shown:
            return None
        elsewhere = [view for view in shown if view.index != away] if away >= 0 else shown
        work = self._work(group, trajectory, is_fresh)
        settings = self.state.strategy_settings
        index = self.route(work, elsewhere, settings) if elsewhere else None
        if index is None and len(elsewhere) < len(shown):
            index = self.route(work, shown, settings)
        if index is None:
            return None
        assert any(view.index == index for view in shown), f"routing chose {index}, which may not run it"
        return self.state.registry.instance(index)

    def _candidates(self, trajectory: Trajectory, is_fresh: bool, siblings: list[int]) -> list[int]:
        if self._order is None:
            return sorted(self._views)
        lowest = -1 if is_fresh else trajectory.newest_version
        found: dict[int, None] = {}
        for version in self._shortlist.versions():
            if version >= lowest:
                found |= dict.fromkeys(self._shortlist.best(version, SHORTLISTED))
        return list(found | dict.fromkeys(siblings[:SIBLINGS]))

    def _number(self, peer: str | None) -> int:
        instance = self.state.registry.workers.get(peer) if peer is not None else None
        return instance.number if isinstance(instance, Instance) else -1

    def _work(self, group: Group, trajectory: Trajectory, is_fresh: bool) -> WorkView:
        if is_fresh:
            expected, slack = self.state.strategy_settings.typical_tokens, self.state.ledger.max_staleness
        else:
            trajectory.expected_tokens = self.state.expected_tokens(group, trajectory)
            expected = trajectory.prompt_tokens + trajectory.expected_tokens
            slack = self.state.ledger.deadline(group.id) - self.state.ledger.train_version
        minimum = 0 if is_fresh else trajectory.newest_version
        return WorkView(group.id, trajectory.resident_tokens, minimum, is_fresh, expected, slack)

    def _may_run(self, group: Group, trajectory: Trajectory, is_fresh: bool, policy_version: int) -> bool:
        """Version rules: no token older than the one before it, and no start that the ledger has no
        room for."""
        if is_fresh:
            return self.state.ledger.can_reserve(policy_version)
        if trajectory.newest_version >= 0:
            return policy_version >= trajectory.newest_version
        return self.state.ledger.can_lower(group.id, policy_version)

    def _start(self, group_id: int, policy_version: int) -> Trajectory:
        """Reserve, and queue all members; returns the first of them."""
        state, config = self.state, self.state.config
        group = state.groups[group_id]
        state.ledger.reserve(group.id, policy_version)
        group.start(policy_version, size=config.rollout.group_size, spare=config.staleness.spare_responses)
        state.started += 1
        deadline = state.ledger.deadline(group.id)
        for member in group.members:
            state.queue.push(member, deadline)
        first = group.members[0]
        first.expected_tokens = state.expected_tokens(group, first)
        return first

    def _place(self, trajectory: Trajectory, instance: Instance) -> None:
        state = self.state
        group = state.groups[trajectory.id.group]
        assert group.policy_version is not None
        if trajectory.newest_version < 0 and instance.next_version < group.policy_version:
            state.ledger.lower(group.id, instance.next_version)
            group.policy_version = instance.next_version
        trajectory.attempt += 1
        trajectory.left = None
        state.registry.place(instance, trajectory)
        state.accounts.reprefilled += trajectory.resident_tokens if trajectory.response_tokens else 0
        budget = state.config.rollout.max_response_tokens - trajectory.response_tokens
        seed, segments = state.seed(group, trajectory), tuple(trajectory.segments)
        message = Route(*trajectory.id, trajectory.attempt, seed, budget, segments)
        state.send(instance.peer, message)
