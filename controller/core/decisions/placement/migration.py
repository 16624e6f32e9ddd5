"""Preemption by the controller: migration between instances, and engine queues that overflow.

Invariants: a trajectory that is being moved is not moved again before it came back; it keeps its tokens, its
deadline and its versions.
Source: StaleFlow (arXiv 2601.12784): migration by phi_wait and phi_throughput.
"""

from collections.abc import Iterator, Mapping, Sequence

from controller.core.state.groups import FIRST_EVALUATION_GROUP, Trajectory
from controller.core.state.registry import Instance
from controller.core.state.run_state import RunState
from controller.core.state.views.instances import InstanceViews
from protocol.ids import TrajectoryId
from protocol.messages import InstanceStatus, Interrupt
from strategies.views import RunningView

FULL = 0.9  # share of the KV cache in use, above which what waits in an engine waits for KV


class Migrations:
    """Interrupts single trajectories."""

    def __init__(self, state: RunState, views: InstanceViews) -> None:
        self.state, self.views = state, views
        self._decided_at = 0.0
        self._decided_after = 0

    @property
    def is_off(self) -> bool:
        """Whether nothing moves by a strategy."""
        return self.state.config.staleness.migration == "none"

    def run(self) -> None:
        """Migrate, at most every `decide_s`; nothing moves while everything is about to."""
        if not self._is_due() or self.is_off or self.state.queue:
            return
        self._decided_at, self._decided_after = self.state.now, self.state.events
        views = self.views.settled()
        running = _Running(self.state)
        chosen = self.state.strategies.migrate(views, running, self.state.strategy_settings)
        self._interrupt([running.trajectory(index) for index in chosen], "migrations")

    def _is_due(self) -> bool:
        """A decision looks at every instance, so that per event it costs the same however many there are."""
        is_time = self.state.now >= self._decided_at + self.state.config.staleness.decide_s
        return is_time and self.state.events >= self._decided_after + self.state.registry.ready_instances

    def on_status(self, instance: Instance, message: InstanceStatus) -> None:
        """Take back what waits in an engine's own queue beyond phi_wait: it could run elsewhere."""
        if self.is_off or message.waiting <= self.state.config.staleness.phi_wait:
            return
        is_full = message.resident_tokens >= FULL * instance.kv_tokens
        if (
            instance.pulling is not None or not is_full
        ):  # it waits for weights, or for its turn to be prefilled
            return
        back: list[Trajectory] = []
        for group, member, attempt in message.queued:
            id = TrajectoryId(group, member)
            if instance.running.get(id) == attempt and group < FIRST_EVALUATION_GROUP:
                back.append(self.state.groups[group].members[member])
        self._interrupt(back, "returned")

    def _interrupt(self, trajectories: Sequence[Trajectory], what: str) -> None:
        attempts: dict[str, list[tuple[int, int, int]]] = {}
        for trajectory in trajectories:
            if trajectory.peer is not None and trajectory.moved_from != trajectory.peer:
                trajectory.moved_from = trajectory.peer
                attempts.setdefault(trajectory.peer, []).append(trajectory.id.attempt(trajectory.attempt))
                self.state.accounts.counts[what] += 1
        for peer, listed in attempts.items():
            self.state.send(peer, Interrupt(tuple(listed)))


class _Running(Mapping[int, Sequence[RunningView]]):
    """The trajectories of each instance, made into views only where a strategy looks."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._numbered: list[Trajectory] = []
        self._views: dict[int, list[RunningView]] = {}

    def trajectory(self, index: int) -> Trajectory:
        """The one that a strategy named."""
        return self._numbered[index]

    @property
    def shown(self) -> int:
        """Trajectories that a strategy has looked at; their indices are below."""
        return len(self._numbered)

    def __getitem__(self, number: int) -> Sequence[RunningView]:
        if number not in self._views:
            running = self._state.registry.instance(number).running
            self._views[number] = [self._view(id) for id in running if id.group < FIRST_EVALUATION_GROUP]
        return self._views[number]

    def __iter__(self) -> Iterator[int]:
        return (instance.id for instance in self._state.registry.instances())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        """Those that were looked at, for people."""
        return repr(self._views)

    def _view(self, id: TrajectoryId) -> RunningView:
        group = self._state.groups[id.group]
        member = group.members[id.member]
        self._numbered.append(member)
        return RunningView(
            len(self._numbered) - 1,
            member.resident_tokens,
            max(1, member.expected_tokens - member.response_tokens),
            member.newest_version,
            self._state.ledger.deadline(group.id) - self._state.ledger.train_version,
            member.reported,
        )
