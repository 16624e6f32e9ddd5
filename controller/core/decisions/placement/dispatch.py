"""Which trajectory starts where: admission, reservation, routing.

Invariants: a group starts only with a reservation in the ledger; a trajectory runs only at or above the
version of its newest token, and never below the version that its group was admitted under without the
ledger's leave; a route to an instance that pulls stands behind the pull; begun work goes before fresh work,
and what is due first is not overtaken by what would take its room, but holds nothing back that may run where
it may not; an idle instance takes whatever may run at its version; routes per step are bounded; a decision
looks at a few instances, however many there are.
Source: StaleFlow (arXiv 2601.12784), routing over a queue by trajectory version.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from controller.core.state.agents.homes import home
from controller.core.state.groups import Group, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.admission import admitted, next_fresh
from controller.core.state.views.instances import InstanceViews
from protocol.ids import TrajectoryId
from protocol.messages import Route
from strategies.routing import has_room
from strategies.views import InstanceView, WorkView, with_sibling

ROUTES_PER_STEP = 128  # then other events have their turn
SHORTLISTED = 4  # instances of each version that routing is shown
LOOKED_AT = 32  # instances of each version, best first, that are asked for room
SIBLINGS = 2  # and so many that hold a member of the same group


class Head(NamedTuple):
    """What may go next."""

    trajectory: Trajectory
    is_fresh: bool  # it opens a group
    policy_version: int  # the newest that it may be placed under: beyond, other work is due first


def _is_full(key: tuple[bool, object]) -> bool:
    """Whether an instance with this key in the shortlist, and all behind it, have no free row."""
    return key[0]


class Dispatch:
    """Places trajectories on instances."""

    def __init__(self, state: RunState, views: InstanceViews) -> None:
        self.state, self.views = state, views
        self.is_cut = False  # the last step ended at ROUTES_PER_STEP
        self._refused: dict[tuple[object, ...], None] = {}  # what found no place, and until when that holds
        self._settled: tuple[object, ...] | None = None  # the situation in which nothing more could be routed

    def run(self) -> None:
        """Route queued work by deadline, then fresh groups as far as the ledger and admission allow."""
        if not self.state.registry.changed and self._situation() == self._settled:
            return  # nothing could be routed, and nothing has changed since
        changed = self.views.refresh()
        self.is_cut = False
        self.state.gated.pause(self.state.now)
        self._settled = None
        self._route(changed)
        if not self.is_cut:
            self._settled = self._situation()

    def _route(self, changed: list[int]) -> None:
        """`changed`: the instances whose load changed since the last look."""
        for _ in range(ROUTES_PER_STEP):
            if not self._route_one(changed):
                return
            changed = self.views.refresh()
        self.is_cut = True

    def _route_one(self, changed: list[int]) -> bool:
        """Place the first of what may go next that finds an instance; whether any does."""
        refused: dict[tuple[object, ...], None] = {}
        self.state.gated.since = None
        if not self.state.queue and not (self.state.fresh and admitted(self.state) > 0):
            self._refused = refused  # nothing may go next: so ends nearly every event
            return False
        moment = self._moment()
        for head in self._heads():
            trajectory = head.trajectory
            key = (trajectory.id, trajectory.attempt, head.policy_version, moment)
            only = changed if key in self._refused else None
            chosen = None if only == [] else self._choose(head, only)
            if chosen is not None:
                self._refused = {}
                if head.is_fresh:
                    self.state.fresh.remove(trajectory.id.group)
                    trajectory = self._start(trajectory.id.group, chosen.next_version)
                self.state.queue.remove(trajectory)
                self._place(trajectory, chosen)
                return True
            refused[key] = None
            self.state.gated.since = self.state.now if head.is_fresh else None
        self._refused = refused
        return False

    # -- inside -----------------------------------------------------------------------------------------

    def _moment(self) -> tuple[int, int, int]:
        """Changes whenever something may have become possible that no single instance's load tells."""
        newest = self.state.versions.newest
        ledger = self.state.ledger
        return len(ledger), ledger.train_version, newest.policy_version if newest else -1

    def _situation(self) -> tuple[object, ...]:
        """Whatever decides, instances apart, whether something more may be routed."""
        state, ledger, newest = self.state, self.state.ledger, self.state.versions.newest
        return (
            state.queue.pushed,
            len(state.queue),
            len(state.fresh),
            ledger.reserved,
            ledger.occupied,
            ledger.train_version,
            newest.policy_version if newest else -1,
            state.started,
            state.pulled_version,
            state.pace.cap,
            state.strategy_settings,
            state.orders,
        )

    def _heads(self) -> Iterator[Head]:
        """Candidates to route next, for the instances of each policy version, newest version first.

        Of the queued work that may run under a version, the one that is due first; a fresh group where none
        may.
        """
        due_first = None
        for version in self.views.candidates.versions():
            reach = self.state.ledger.reach(version) if self.state.queue.has_unstarted else 0
            queued = self.state.queue.peek(version, reach)
            if queued is None:
                if self.state.fresh and admitted(self.state) > 0:
                    group = self.state.groups[next_fresh(self.state)]
                    opening = Trajectory(TrajectoryId(group.id, 0), group.prompt_tokens)
                    yield Head(opening, True, version)
                return
            if queued is not due_first:
                yield Head(queued, False, version)
            due_first = queued

    def _choose(self, head: Head, only: list[int] | None) -> Instance | None:
        """The instance for this; `only`: the only ones that can have become able to take it."""
        trajectory = head.trajectory
        group = self.state.groups[trajectory.id.group]
        work = self._work(group, trajectory, head.is_fresh)
        peers = dict.fromkeys([member.peer for member in group.members])  # a dict keeps their order
        siblings = self.state.registry.numbers(peers)
        is_misfit = work.resident_tokens > self.state.registry.largest_kv
        if only is None:
            numbers = list(self.views.shown) if is_misfit else self._candidates(head, work, siblings)
        else:
            numbers = only
        may_run: dict[int, bool] = {}
        shown: list[InstanceView] = []
        for number in numbers:
            view = self.views.shown.get(number)
            if view is None or (version := view.policy_version) > head.policy_version:
                continue
            if version not in may_run:
                may_run[version] = self._may_run(group, trajectory, head.is_fresh, version)
            if may_run[version]:
                view = self._alone(view, work) if is_misfit else view
                shown.append(with_sibling(view) if number in siblings else view)
        if not shown:
            return None
        away = -1 if trajectory.moved_from is None else self._number(trajectory.moved_from)
        elsewhere = [view for view in shown if view.id != away] if away >= 0 else shown
        settings = self.state.strategy_settings
        choose = self.state.strategies.route.choose
        index = choose(work, elsewhere, settings) if elsewhere else None
        if index is None and len(elsewhere) < len(shown):
            index = choose(work, shown, settings)
        if index is None:
            return None
        assert index in [view.id for view in shown], f"routing chose {index}, which may not run it"
        return self.state.registry.instance(index)

    def _alone(self, view: InstanceView, work: WorkView) -> InstanceView:
        """No instance has the KV for this: the largest takes it when it is idle, and its engine decides."""
        is_largest = self.state.registry.instance(view.id).kv_tokens >= self.state.registry.largest_kv
        return view if view.running or not is_largest else view._replace(kv_tokens=work.resident_tokens)

    def _candidates(self, head: Head, work: WorkView, siblings: list[int]) -> list[int]:
        """Of each version, those with room that routing likes best; where many have none, the freest."""
        if self.state.strategies.route.order is None:
            return sorted(self.views.shown)

        every = self.views.shown

        def suits(number: int) -> bool:
            return has_room(work, every[number])

        found: dict[int, None] = {}
        for version in self.views.candidates.versions():
            if work.min_version <= version <= head.policy_version:
                best, seen = self.views.candidates.look(
                    version, SHORTLISTED, suits, looks=LOOKED_AT, is_useless=_is_full
                )
                if len(best) < SHORTLISTED and len(self.views.shown) > LOOKED_AT:
                    best += self._freest(version, None if len(seen) == LOOKED_AT else seen)
                found.update(dict.fromkeys(best))
        for number in siblings[:SIBLINGS]:
            found[number] = None
        if work.home >= 0:
            found[work.home] = None
        return list(found)

    def _freest(self, policy_version: int, seen: list[int] | None) -> list[int]:
        """Those of a version with the most KV free, where almost none of many has room.

        `seen`: all of them that have a free row, if that is known.
        """
        every = self.views.shown
        shown = every.values() if seen is None else [every[number] for number in seen]
        there = [v for v in shown if v.policy_version == policy_version and v.running < v.capacity]
        freest = nsmallest(
            SHORTLISTED, there, key=lambda view: (view.resident_tokens - view.kv_tokens, view.id)
        )
        return [view.id for view in freest]

    def _number(self, peer: str | None) -> int:
        instance = self.state.registry.workers.get(peer) if peer is not None else None
        return instance.id if isinstance(instance, Instance) else -1

    def _work(self, group: Group, trajectory: Trajectory, is_fresh: bool) -> WorkView:
        if is_fresh:
            expected, slack = self.state.strategy_settings.typical_tokens, self.state.ledger.max_staleness
        else:
            trajectory.expected_tokens = self.state.expected_tokens(group, trajectory)
            expected = trajectory.context_tokens + trajectory.expected_tokens
            slack = self.state.ledger.deadline(group.id) - self.state.ledger.train_version
        minimum = 0 if is_fresh else trajectory.newest_version
        resident, keeps_kv = trajectory.resident_tokens, self.state.config.staleness.keep_kv
        held = home(self.state.registry, trajectory, keeps_kv=keeps_kv)
        return WorkView(group.id, resident, minimum, is_fresh, expected, slack, *held)

    def _may_run(self, group: Group, trajectory: Trajectory, is_fresh: bool, policy_version: int) -> bool:
        """Check the version rules for a start or a continuation.

        No token is older than the one before it, and nothing starts that the ledger has no room for.
        """
        if is_fresh:
            return self.state.ledger.can_reserve(policy_version)
        if trajectory.newest_version >= 0:
            return policy_version >= trajectory.newest_version
        return self.state.ledger.can_lower(group.id, policy_version)

    def _start(self, group_id: int, policy_version: int) -> Trajectory:
        """Reserve, and queue all members; returns the first of them."""
        state, config = self.state, self.state.config
        group = state.groups[group_id]
        state.ledger.reserve(group.id, policy_version, source=group.source)
        group.start(policy_version, size=config.rollout.group_size, spare=config.staleness.spare_responses)
        state.started += 1
        deadline = state.ledger.deadline(group.id)
        for member in group.members:
            if member.state == "queued":  # of an episode, others have no ask yet
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
            for member in group.members:
                if state.queue.holds(member):
                    state.queue.push(member, state.ledger.deadline(group.id))
        trajectory.attempt += 1
        trajectory.moved_from = None
        state.registry.place(instance, trajectory)
        state.accounts.reprefilled += trajectory.resident_tokens if trajectory.response_tokens else 0
        budget = state.most_tokens(group, trajectory) - trajectory.turn_tokens
        seed, segments = state.seed(group, trajectory), tuple(trajectory.segments)
        message = Route(*trajectory.id, trajectory.attempt, seed, budget, segments, begins=trajectory.begins)
        state.send(instance.peer, message)
