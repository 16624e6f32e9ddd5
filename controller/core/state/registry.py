"""Registry of workers: which are attached, expected or silent.

Invariants: a peer is one process start, so a respawned worker is a new entry; a worker gets work only between
Ready and Detach, loss or closure, and keeps its trajectories while it is absent; an instance's load counts
every route and return that the core has decided, acknowledged or not (StaleFlow's speculative state), and
changes only by `place`, `take`, `grow`, `expect`, `has_pulled` and `hand_over`; the cost per event is at most
logarithmic in the number of workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from controller.core.state.agents.told_agents import ToldAgent
from controller.core.state.groups import Trajectory
from controller.core.state.leases import Leases
from controller.core.state.told import Told, told_as
from controller.core.state.transitions import GONE, WORKER, WorkerState, move_trajectory, move_worker
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Attach, InstanceStatus, MachineUse, Role
from strategies.fitting import OnlineFit

AHEAD = 2  # a reward worker gets this many times the groups it scores at once, so that it never runs dry
MIN_IN_HAND = 4  # least groups it gets, for functions that take less time than a message


@dataclass(slots=True)
class Worker:
    """One attached process."""

    peer: PeerId
    name: str
    role: Role
    last_heard: float
    state: WorkerState = "attached"
    lease_s: float | None = None  # silence after which it is lost; None when it is not attached any more
    host: str = ""
    endpoint: str = ""  # where it relays policy versions to other hosts; "" until it has reported it
    is_asked: bool = False  # whether it was asked for its endpoint
    told: Told = field(default_factory=lambda: Told(0.0))
    usage: MachineUse | None = None  # use of its machine; None until reported
    device: Literal["own", "none", "held", "releasing"] = "own"  # "own" but for both sides of a colocated run

    @property
    def ready(self) -> bool:
        """Whether it may be given work."""
        return self.state == "ready"

    @property
    def is_absent(self) -> bool:
        """Whether it was attached to an earlier controller, and may come back."""
        return self.state == "absent"

    @property
    def deadline(self) -> float | None:
        """When it is lost unless it is heard before; None if it is not attached."""
        return None if self.lease_s is None else self.last_heard + self.lease_s


@dataclass(slots=True)
class Instance(Worker):
    """A rollout worker."""

    capacity: int = 0
    kv_tokens: int = 0
    policy_version: int = -1  # version that it samples from; -1 before its first pull
    pulling: int | None = None  # version that it is loading
    pull_failures: int = 0  # in a row, but for those that reached no source
    unreachable_since: float | None = None  # since when its pulls reach no source
    pull_s: float = 0.0  # duration of the last pull
    id: int = 0  # its number for strategies, in the order of attaching
    resident_tokens: int = 0
    expected_tokens: int = 0  # prompt and predicted final response tokens of running trajectories
    urgent: int = 0  # running trajectories that need much of the time until their group is due
    running: dict[TrajectoryId, int] = field(default_factory=dict)  # id -> attempt
    promised: dict[TrajectoryId, int] = field(default_factory=dict)  # those routed behind the pull
    parked: dict[TrajectoryId, int] = field(default_factory=dict)  # trajectories between turns: cached tokens
    evaluating: int = 0  # running trajectories that answer held-out prompts
    status: InstanceStatus | None = None
    fit: OnlineFit | None = None  # None: a fixed profile is used, or nothing was observed yet
    kv_share: float = 1.0  # share of kv_tokens that is filled; preemptions lower it

    @property
    def is_routable(self) -> bool:
        """Whether it can take trajectories now."""
        version = self.policy_version if self.pulling is None else self.pulling
        return self.state == "ready" and version >= 0 and self.device in ("own", "held")

    @property
    def next_version(self) -> int:
        """Version that the next trajectory sent to it is sampled from.

        Messages keep their order, so a route behind a pull runs under the pulled version.
        """
        return self.policy_version if self.pulling is None else self.pulling


@dataclass(slots=True)
class TextWorker(Worker):
    """A reward worker: it encodes prompts and scores responses."""

    capacity: int = 0  # groups that it scores at once; 0: unknown
    encoding: set[int] = field(default_factory=set)  # groups that it is encoding
    scoring: set[int] = field(default_factory=set)

    @property
    def pending(self) -> int:
        """Groups that it works on."""
        return len(self.encoding) + len(self.scoring)

    @property
    def load(self) -> float:
        """Groups that it works on, relative to its capacity."""
        return self.pending / max(self.capacity, 1)

    @property
    def has_room(self) -> bool:
        """Whether it may get another group to score; more would only wait there."""
        return not self.capacity or len(self.scoring) < max(AHEAD * self.capacity, MIN_IN_HAND)


@dataclass(slots=True)
class AgentWorker(Worker):
    """A worker that runs the functions of agents."""

    capacity: int = 0  # episodes that it runs at once
    episodes: dict[tuple[int, int], int] = field(default_factory=dict)  # (group, episode) -> trial


@dataclass(slots=True)
class LocalWorker:
    """A local worker that the controller keeps running under one name."""

    name: str
    role: Role
    deadline: float | None  # when it must be Ready; None while it is, or is not started
    failures: int = 0  # consecutive exits without useful work in between
    last_reason: str = ""  # why it failed or was closed; "" if that is unknown yet
    is_told: bool = False  # whether the operator was told that reason


class Registry:
    """All attached workers, and the local ones that are to be."""

    def __init__(self) -> None:
        self.workers: dict[PeerId, Worker] = {}
        self.local: dict[str, LocalWorker] = {}
        self.attached_ever = 0
        self.ready_instances = self.busy_instances = 0
        self.running = 0  # running trajectories, on all instances
        self.changed: dict[PeerId, None] = {}  # instances whose load or version changed since dispatch looked
        self.grown: dict[PeerId, None] = {}  # instances that got tokens, which frees no room
        self.largest_kv = 0  # tokens in the largest KV cache of a ready instance
        self.leases: Leases[Worker | LocalWorker] = Leases()
        self._instances: dict[PeerId, Instance] = {}
        self._by_id: dict[int, Instance] = {}
        self._text_workers: dict[PeerId, TextWorker] = {}
        self._agents: dict[PeerId, AgentWorker] = {}
        self._trainers: dict[PeerId, Worker] = {}

    def attach(self, peer: PeerId, message: Attach, now: float) -> Worker:
        """Enter a new peer."""
        kinds = {"rollout": Instance, "reward": TextWorker, "trainer": Worker, "agent": AgentWorker}
        worker = kinds[message.role](peer, message.name, message.role, last_heard=now, host=message.host)
        worker.told = ToldAgent(now) if message.role == "agent" else told_as(message.role, now)
        self.workers[peer] = worker
        self.attached_ever += 1
        if isinstance(worker, Instance):
            worker.id = self.attached_ever
            self._instances[peer] = self._by_id[worker.id] = worker
        elif isinstance(worker, TextWorker):
            self._text_workers[peer] = worker
        elif isinstance(worker, AgentWorker):
            self._agents[peer] = worker
        else:
            self._trainers[peer] = worker
        return worker

    def make_ready(self, worker: Worker) -> None:
        """The worker may be given work from now on."""
        if not worker.ready and isinstance(worker, Instance):
            self.ready_instances += 1
            self.busy_instances += bool(worker.running)
            self.changed[worker.peer] = None
        move_worker(worker, "readied")

    def remove(self, peer: PeerId) -> Worker | None:
        """Take a peer out."""
        worker = self.workers.pop(peer, None)
        if worker is not None:
            worker.lease_s = None
        if isinstance(worker, Instance):
            del self._instances[peer], self._by_id[worker.id]
            self.changed.pop(peer, None)
            self._free_link(worker)
            self.ready_instances -= worker.ready
            self.busy_instances -= worker.ready and bool(worker.running)
            self._see_largest(without=worker)
        self._text_workers.pop(peer, None)
        self._agents.pop(peer, None)
        self._trainers.pop(peer, None)
        if worker is not None:
            move_worker(worker, "removed")
        return worker

    def make_absent(self, instance: Instance, now: float, lease_s: float) -> None:
        """An instance is gone, and keeps its trajectories until it is back or its lease ends."""
        self.ready_instances -= instance.ready
        self.busy_instances -= instance.ready and bool(instance.running)
        move_worker(instance, "awaited")
        self._free_link(instance)
        instance.pulling = None
        instance.promised.clear()
        instance.last_heard, instance.lease_s = now, lease_s
        self.leases.watch(instance)
        self._see_largest(without=instance)

    def equip(self, instance: Instance, *, capacity: int, kv_tokens: int) -> None:
        """Set the capacity that an instance has reported."""
        instance.capacity, instance.kv_tokens = capacity, kv_tokens
        self.largest_kv = max(self.largest_kv, kv_tokens)

    def _free_link(self, gone: Instance) -> None:
        """Wake the instances of a host whose pulling one is gone: one of a host pulls at a time."""
        if gone.pulling is not None:
            self.changed |= dict.fromkeys(peer for peer, i in self._instances.items() if i.host == gone.host)

    def _see_largest(self, *, without: Instance) -> None:
        alike = (i.ready and i.kv_tokens == self.largest_kv for i in reversed(self._instances.values()))
        if without.kv_tokens >= self.largest_kv and not any(alike):  # the last one, where all go in turn
            self.largest_kv = max((i.kv_tokens for i in self.instances() if i.ready), default=0)

    def hand_over(self, former: Instance, instance: Instance, trajectory: Trajectory) -> None:
        """Move a trajectory to the successor of its instance, in the middle of its attempt."""
        reported = trajectory.reported
        self.take(former, trajectory)
        self.place(instance, trajectory)
        trajectory.reported, trajectory.moved_from = reported, None

    def place(self, instance: Instance, trajectory: Trajectory) -> None:
        """A trajectory runs on the instance from now on."""
        self.busy_instances += instance.ready and not instance.running
        self.running += 1
        move_trajectory(trajectory, "placed")
        trajectory.peer, trajectory.reported, trajectory.home = instance.peer, 0, None
        instance.parked.pop(trajectory.id, None)
        trajectory.next_prediction_at = 0
        instance.running[trajectory.id] = trajectory.attempt
        instance.evaluating += trajectory.is_evaluation
        if instance.pulling is not None:
            instance.promised[trajectory.id] = trajectory.attempt
        instance.resident_tokens += trajectory.resident_tokens
        instance.expected_tokens += trajectory.context_tokens + trajectory.expected_tokens
        self.changed[instance.peer] = None

    def take(self, instance: Instance, trajectory: Trajectory) -> None:
        """Take a trajectory off its instance; the caller decides what follows."""
        trajectory.stand_alone()
        del instance.running[trajectory.id]
        self.running -= 1
        instance.evaluating -= trajectory.is_evaluation
        instance.promised.pop(trajectory.id, None)
        instance.resident_tokens -= trajectory.resident_tokens
        instance.expected_tokens -= trajectory.context_tokens + trajectory.expected_tokens
        instance.urgent -= trajectory.is_urgent
        move_trajectory(trajectory, "taken")
        trajectory.is_urgent, trajectory.peer = False, None
        if instance.peer in self._instances:  # else it was removed, and is not counted any more
            self.busy_instances -= instance.ready and not instance.running
            self.changed[instance.peer] = None

    def grow(self, instance: Instance, tokens: int) -> None:
        """Trajectories of the instance got `tokens` more."""
        instance.resident_tokens += tokens
        self.grown[instance.peer] = None

    def expect(self, instance: Instance, trajectory: Trajectory, *, expected: int, is_urgent: bool) -> None:
        """Note the predicted final response tokens of a trajectory."""
        instance.urgent += is_urgent - trajectory.is_urgent
        trajectory.is_urgent = is_urgent
        instance.expected_tokens += expected - trajectory.expected_tokens
        trajectory.expected_tokens = expected

    def has_pulled(self, instance: Instance, *, keeps_kv: bool = False) -> None:
        """The instance has pulled: it and the trajectories routed behind the pull use the new version."""
        assert instance.pulling is not None, f"{instance.name} was told to load nothing"
        instance.policy_version, instance.pulling = instance.pulling, None
        instance.promised.clear()
        if not keeps_kv:
            instance.parked.clear()
        self.changed[instance.peer] = None

    def named(self, name: str) -> Worker | None:
        """The attached worker of this name, if there is one."""
        there = (worker for worker in self.workers.values() if not worker.is_absent)
        return next((worker for worker in there if worker.name == name), None)

    def instances(self) -> Iterator[Instance]:
        """Attached rollout workers, in the order in which they attached."""
        return iter(self._instances.values())

    def instance(self, id: int) -> Instance:
        """The instance of this number. Raises: KeyError."""
        return self._by_id[id]

    def text_workers(self) -> Iterator[TextWorker]:
        """Reward workers that are ready."""
        return (worker for worker in self._text_workers.values() if worker.state == "ready")

    def agents(self) -> Iterator[AgentWorker]:
        """Agent workers that are ready."""
        return (worker for worker in self._agents.values() if worker.state == "ready")

    def trainer(self) -> Worker | None:
        """The trainer, once it is ready."""
        for worker in self._trainers.values():  # called several times per event: no generator
            if worker.state == "ready":
                return worker
        return None

    def being_pulled(self) -> set[int]:
        """Versions that instances are loading now."""
        return {instance.pulling for instance in self.instances() if instance.pulling is not None}

    def forgive(self, now: float, gap_s: float) -> None:
        """Renew all leases: the controller itself was stalled for `gap_s` seconds."""
        for worker in self.workers.values():
            worker.last_heard = now
        for local in self.local.values():
            if local.deadline is not None:
                local.deadline += gap_s

    def check(self) -> None:
        """Assert what holds of workers in each state, and the counters."""
        for worker in self.workers.values():
            here = f"{worker.name} is {worker.state}"
            assert worker.state in WORKER.states, here
            assert worker.state != GONE, f"{here}, and still among the workers"
            assert worker.deadline is not None, f"{here}, and would never be missed"
            if isinstance(worker, Instance):
                assert worker.ready or worker.pulling is None, f"{here}, and pulls {worker.pulling}"
            else:
                assert not worker.is_absent, f"{here}; only rollout workers come back"
            if isinstance(worker, TextWorker):
                assert worker.ready or not worker.pending, f"{here}, with {worker.pending} groups"
            if isinstance(worker, AgentWorker):
                assert worker.ready or not worker.episodes, f"{here}, with {len(worker.episodes)} episodes"
        ready = sum(i.ready for i in self.instances())
        assert self.ready_instances == ready, f"{self.ready_instances} ready instances counted, {ready} there"
        running = sum(len(i.running) for i in self.instances())
        assert self.running == running, f"{self.running} responses counted at instances, {running} there"
        busy = sum(i.ready and bool(i.running) for i in self.instances())
        assert self.busy_instances == busy, f"{self.busy_instances} busy instances counted, {busy} there"
