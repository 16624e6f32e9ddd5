"""Workers that the controller knows: who is attached, who is expected, who has fallen silent.

Invariants: a peer is one process start, so a respawned worker is a new entry; a worker gets work only
between Ready
and Detach, loss or closure; an instance's load counts every route and return that the core has decided,
acknowledged or not (StaleFlow's speculative state).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Attach, InstanceStatus, Role


@dataclass(slots=True)
class Worker:
    """One attached process."""

    peer: PeerId
    name: str
    role: Role
    last_heard: float
    ready: bool = False


@dataclass(slots=True)
class Instance(Worker):
    """A rollout worker."""

    capacity: int = 0
    kv_tokens: int = 0
    policy_version: int = -1  # that it samples from; -1 before its first pull
    pulling: int | None = None  # version that it was told to load
    pull_failures: int = 0  # in a row
    resident_tokens: int = 0
    running: dict[TrajectoryId, int] = field(default_factory=dict)  # id -> attempt
    status: InstanceStatus | None = None

    @property
    def is_routable(self) -> bool:
        """Whether it can take a trajectory at all now."""
        return self.ready and self.pulling is None and self.policy_version >= 0


@dataclass(slots=True)
class TextWorker(Worker):
    """A reward worker: the text side of the run (prompts to tokens, responses to rewards)."""

    encoding: set[int] = field(default_factory=set)  # groups asked for and not answered
    scoring: set[int] = field(default_factory=set)

    @property
    def pending(self) -> int:
        """Groups that it works on."""
        return len(self.encoding) + len(self.scoring)


@dataclass(slots=True)
class LocalWorker:
    """A process that the controller keeps running under one name."""

    name: str
    role: Role
    deadline: float | None  # when it must be Ready; None while it is, or is not started
    failures: int = 0  # exits in a row without useful work between
    last_reason: str = ""  # what it said, or how it ended


class Registry:
    """All attached workers, and the local ones that ought to be."""

    def __init__(self) -> None:
        self.workers: dict[PeerId, Worker] = {}
        self.local: dict[str, LocalWorker] = {}
        self.attached_ever = 0

    def attach(self, peer: PeerId, message: Attach, now: float) -> Worker:
        """Enter a new peer."""
        kinds = {"rollout": Instance, "reward": TextWorker, "trainer": Worker}
        worker = kinds[message.role](peer=peer, name=message.name, role=message.role, last_heard=now)
        self.workers[peer] = worker
        self.attached_ever += 1
        return worker

    def remove(self, peer: PeerId) -> Worker | None:
        """Take a peer out."""
        return self.workers.pop(peer, None)

    def named(self, name: str) -> Worker | None:
        """The attached worker of this name, if there is one."""
        return next((worker for worker in self.workers.values() if worker.name == name), None)

    def instances(self) -> Iterator[Instance]:
        """Attached rollout workers, in the order in which they attached."""
        return (worker for worker in self.workers.values() if isinstance(worker, Instance))

    def text_workers(self) -> Iterator[TextWorker]:
        """Reward workers that are ready."""
        return (worker for worker in self.workers.values() if isinstance(worker, TextWorker) and worker.ready)

    def trainer(self) -> Worker | None:
        """The trainer, once it is ready."""
        return next((w for w in self.workers.values() if w.role == "trainer" and w.ready), None)

    def being_pulled(self) -> set[int]:
        """Versions that somebody is loading now."""
        return {instance.pulling for instance in self.instances() if instance.pulling is not None}

    def forgive(self, now: float, gap_s: float) -> None:
        """Give everybody a new lease: the controller itself did not run for `gap_s` seconds."""
        for worker in self.workers.values():
            worker.last_heard = now
        for local in self.local.values():
            if local.deadline is not None:
                local.deadline += gap_s
