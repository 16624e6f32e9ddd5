"""Dispatch: starts groups by admission and reservation, and routes trajectories to instances.

Invariants: a group starts only with a reservation in the ledger; a route to a pulling instance is sent after
the pull; begun work goes before fresh work; work that is due first is not overtaken by work that would take
its room, but does not hold back work for instances on which it may not run itself; an idle instance takes any
work that may run at its version, in this step or in those that follow at once; routes per step are bounded,
and so are routes per moment, as a host takes all events of one moment in one turn.
Source: StaleFlow (arXiv 2601.12784), routing over a queue by trajectory version.
"""

from collections.abc import Iterator

from controller.core.state.groups import Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.admission import admitted, next_fresh
from controller.core.state.views.choices import Choices, Head
from controller.core.state.views.instances import InstanceViews
from protocol.ids import TrajectoryId
from protocol.messages import Route

ROUTES_PER_STEP = 64  # then other events have their turn
ROUTES_PER_MOMENT = 256  # for all events of one moment; then events that wait at the host have their turn


class Dispatch:
    """Places trajectories on instances."""

    def __init__(self, state: RunState, views: InstanceViews) -> None:
        self.state, self.views = state, views
        self.choices = Choices(state, views)
        self.is_cut = False  # the last step ended at ROUTES_PER_STEP, or at ROUTES_PER_MOMENT
        self._moment_s, self._left = -1.0, ROUTES_PER_MOMENT  # this moment, and the routes left in it
        self._refused: dict[tuple[object, ...], None] = {}  # work that found no instance, by situation
        self._settled: tuple[object, ...] | None = None  # situation in which no more work could be routed
        self._is_idle = False  # whether no work may start in it, however instances change

    def renew(self) -> None:
        """A tick has come: events that waited at the host have had their turn."""
        self._left = ROUTES_PER_MOMENT

    def run(self) -> None:
        """Route queued work by deadline, then fresh groups as far as the ledger and admission allow."""
        is_settled = self._situation() == self._settled
        if is_settled and not self.state.registry.changed:
            return  # nothing could be routed, and nothing has changed since
        changed = self.views.refresh()
        if is_settled and self._is_idle:
            return
        self.is_cut = False
        self.state.gated.pause(self.state.now)
        self._settled = None
        if self.state.now > self._moment_s:
            self._moment_s, self._left = self.state.now, ROUTES_PER_MOMENT
        self._route(changed)
        self.choices.forget()
        if not self.is_cut:
            self._settled = self._situation()

    def _route(self, changed: list[int]) -> None:
        """`changed`: the instances whose load changed since the last look."""
        for _ in range(min(ROUTES_PER_STEP, self._left)):
            if not self._route_one(changed):
                return
            self._left -= 1
            changed = self.views.refresh()
        self.is_cut = True

    def _route_one(self, changed: list[int]) -> bool:
        """Place the first candidate that finds an instance; returns whether one did."""
        refused: dict[tuple[object, ...], None] = {}
        self.state.gated.since = None
        self._is_idle = not self._may_anything_go
        if self._is_idle:  # so ends nearly every event
            self._refused = refused
            return False
        moment = self._moment()
        for head in self._heads():
            trajectory = head.trajectory
            key = (trajectory.id, trajectory.attempt, head.policy_version, moment)
            only = changed if self._refused and key in self._refused else None
            chosen = None if only == [] else self.choices.choose(head, only)
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

    def check(self) -> None:
        """A situation that was found idle is still idle. Raises: AssertionError."""
        if self._is_idle and self._situation() == self._settled:
            assert not self._may_anything_go, "something may go next, and dispatch does not look"

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _may_anything_go(self) -> bool:
        return bool(self.state.queue) or (bool(self.state.fresh) and admitted(self.state) > 0)

    def _moment(self) -> tuple[int, int, int]:
        """Changes when work may have become placeable for another reason than an instance's load."""
        newest = self.state.versions.newest
        ledger = self.state.ledger
        return len(ledger), ledger.train_version, newest.policy_version if newest else -1

    def _situation(self) -> tuple[object, ...]:
        """Everything but instances that decides whether more work may be routed."""
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

        For each version: the queued work that may run under it and is due first, or else a fresh group.
        """
        due_first = None
        self.choices.versions = self.views.candidates.versions()
        for version in self.choices.versions:
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
