"""A simulated run in which everything dies, stops, or loses its messages: controllers, workers, links.

Invariants: every message travels through the production session layer over links that drop, double, delay
and reorder packets; a controller that dies leaves its journal and its snapshots, and nothing else; a trainer
goes on from its checkpoint; equal seeds give equal runs.
"""

import random
from dataclasses import dataclass, field

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core import events
from controller.core.commands import Command, DropPayload, ReportStep
from controller.core.core import Core
from controller.core.events import Event, Received
from controller.core.liveness import check_liveness
from controller.durability.image.freezer import Freezer
from controller.durability.image.thawer import thaw
from controller.simulation import Faults, Simulation
from controller.simulation.faults import Kind
from controller.simulation.host import LINK_S, _Process
from protocol import messages
from protocol.messages import Beat, Message, Pull, PullFailed, Retire, Role, Train
from protocol.wire.codec import Packet
from protocol.wire.session import Session
from workers.simulated import SimulatedTrainer

RESEND_S = 1.0
RESTART_S = 0.5


@dataclass(frozen=True, slots=True)
class Plagues:
    """What goes wrong beside the faults of workers. Rates per event or per packet, times in virtual
    seconds."""

    controller_deaths: float = 0.0
    trainer_deaths: float = 0.0
    wiped: float = 0.0  # of those, the share that takes the host's published versions along
    snapshots: float = 0.0
    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_s: float = 1.0
    pauses_s: float = 0.0  # mean time between two; 0: none
    longest_pause_s: float = 25.0


@dataclass(slots=True)
class Disk:
    """What outlives processes."""

    checkpoint: int = 0
    batches: dict[int, list[int]] = field(default_factory=dict)  # that trainers were fed
    dropped: set[int] = field(default_factory=set)
    files: set[int] = field(default_factory=set)  # versions that are published


class DurableTrainer(SimulatedTrainer):
    """A trainer that begins at the newest checkpoint, refuses other batches, and publishes as a real one."""

    def __init__(self, times, *, now: float, disk: Disk) -> None:
        self.disk, self.version = disk, disk.checkpoint
        self.ahead: list[int] = []  # groups of the next batch
        super().__init__(times, now=now)

    def _begin(self, now: float) -> None:
        self.has_device = self._has_begun = True
        disk, times = self.disk, self.times
        disk.files = {version for version in disk.files if version >= self.version}
        for version in sorted(disk.files - {self.version}):  # they have outlived its forerunner
            self._later(now + times.attach_s, self._published(version))
        self._later(now + times.attach_s, messages.Ready(self.version, 0, 0))
        self._later(now + times.attach_s + times.publish_s, self._published(self.version))

    def handle(self, now: float, command: Message) -> list[Message]:
        """Take one command; nothing is said at once. Raises: AssertionError if it is not the next one."""
        match command:
            case messages.TrainAhead(train_version, items):
                assert train_version == self.version, f"ahead of {train_version}, trainer at {self.version}"
                self.ahead += [item.group for item in items]
                assert not self.disk.dropped & set(self.ahead)
                super().handle(now, command)
            case Train(train_version, items, is_published, ahead):
                assert self.ahead == [item.group for item in items[:ahead]], "other groups came ahead"
                self.ahead = []
                assert train_version == self.version, f"batch {train_version} to a trainer at {self.version}"
                groups = sorted({item.group for item in items})
                assert self.disk.batches.setdefault(train_version, groups) == groups
                assert not self.disk.dropped & set(groups)
                self.version += 1
                super().handle(now, command)
                if is_published:
                    self._due = [d for d in self._due if d[2] != self._published(train_version + 1)]
            case messages.SaveCheckpoint(version):
                assert version == self.version
                super().handle(now, command)
            case Retire(version):
                self.disk.files.discard(version)
            case messages.Take() | messages.Release():
                super().handle(now, command)
        return []

    def wake(self, now: float) -> list[Message]:
        """What is due by now; what it tells of is on the disk."""
        said = super().wake(now)
        for message in said:
            if isinstance(message, messages.CheckpointSaved):
                self.disk.checkpoint = max(self.disk.checkpoint, message.policy_version)  # the newest counts
            elif isinstance(message, messages.PolicyPublished):
                self.disk.files.add(message.policy_version)
        return said


class Killed(Exception):
    """The controller was killed, in the middle of whatever the host did."""


@dataclass(slots=True)
class _Link:
    """Both ends of one worker's conversation."""

    process: _Process
    up: Session = field(default_factory=Session)  # the worker's end
    down: Session = field(default_factory=Session)  # the controller's end
    resending: set[str] = field(default_factory=set)
    is_paused: bool = False
    held: list[tuple[str, Packet]] = field(default_factory=list)  # arrived while the worker was stopped


class FaultySimulation(Simulation):
    """The production core and sessions, under plagues drawn from the seed."""

    def __init__(
        self, settings: Config, *, seed: int, prompts: int, plagues: Plagues, faults: Faults | None = None,
        check_every: int = 1, crash_at: int | None = None,
    ) -> None:  # fmt: skip
        """`crash_at`: kill the controller at this event and at no other."""
        self.plagues, self.disk, self.counts = plagues, Disk(), dict.fromkeys(Plagues.__slots__, 0)
        self.history: list[tuple[float, Event]] = []
        self.crash_at = crash_at
        self._settings, self._freezer = settings, Freezer()
        self._snapshot: tuple[int, bytes] | None = None
        self._links: dict[str, _Link] = {}
        self._dice = random.Random(f"plagues/{seed}")
        self._faults_until = float("inf")
        super().__init__(
            settings, seed=seed, faults=faults, prompts=prompts, check_every=check_every, with_digest=False
        )
        make = self.cluster.make

        def durable(name: str, role: Role, now: float):
            made = make(name, role, now)
            return DurableTrainer(made.times, now=now, disk=self.disk) if role == "trainer" else made

        self.cluster.make = durable  # type: ignore[method-assign]

    def run_through(self, *, faults_until: int = 15_000):
        """Run to the end, through all deaths of the controller.

        After this many events there are no more faults, since a few worlds lose as fast as they make: within
        as many more, the run has to end. Most end before, after 2,000 to 10,000.
        """
        self._faults_until = faults_until
        while True:
            if self.plagues.pauses_s:
                self._at(self._dice.expovariate(1 / self.plagues.pauses_s), self._pause_one)
            try:
                return self.run(max_events=2 * faults_until)
            except Killed:
                self._crash()

    # -- the controller ---------------------------------------------------------------------------------

    def _deliver(self, event: Event) -> None:
        begins = isinstance(event, events.Started | events.Restarted)
        may_die = not begins and not self.core.state.finished
        when = self._dice.choice(("before", "between", "after")) if may_die and self._dies() else ""
        if when == "before":  # of what was said, nothing is in the journal, and nobody was told that it is
            raise Killed
        self.history.append((self._now, event))
        if when == "between":  # the journal has it; what the core wanted because of it was never done
            raise Killed
        super()._deliver(event)
        check_liveness(self.core, grace_s=0.0)
        if when == "after":
            raise Killed
        if self._chance("snapshots"):
            self._snapshot = len(self.history), self._freezer.freeze(self.core)
        if may_die and self._chance("trainer_deaths"):
            for process in [p for p in self._processes.values() if p.role == "trainer"]:
                self._kill(process)
            if self._chance("wiped"):
                self.disk.files.clear()

    def _dies(self) -> bool:
        if self.crash_at is not None:
            return len(self.history) == self.crash_at and not self.counts["controller_deaths"]
        return self._dice.random() < self.plagues.controller_deaths and not self._is_over()

    def _is_over(self) -> bool:
        return self.outcome.events > self._faults_until

    def _strike(self, kind: Kind) -> None:
        if not self._is_over():
            super()._strike(kind)

    def _chance(self, what: str) -> bool:
        is_hit = self._dice.random() < getattr(self.plagues, what) and not self._is_over()
        self.counts[what] += is_hit
        return is_hit

    def _execute(self, command: Command) -> None:
        if isinstance(command, DropPayload):
            self.disk.dropped.update(command.groups)
        super()._execute(command)

    def _crash(self) -> None:
        """The controller is killed, its commands of now are lost, and its workers go with it."""
        self.counts["controller_deaths"] += 1
        for process in self._processes.values():
            process.is_alive = False
        self._processes.clear()
        self._links.clear()
        self._heap.clear()
        self._ticking = None
        self.core, lines = self._replayed(None)
        if self._snapshot is not None:
            again, _ = self._replayed(self._snapshot)
            assert Freezer().freeze(again) == Freezer().freeze(self.core), "a snapshot led elsewhere"
            self.core = again
        assert lines[: len(self.outcome.lines)] == self.outcome.lines
        self.outcome.lines = lines
        assert self._read >= self.core.scoring.read_until
        self._read = self.core.scoring.read_until
        self._is_begun = True
        if self.core.state.finished:  # only its last words were lost: there is nothing to go on with
            self.outcome.is_success = self.core.state.ending_is_success
            self.outcome.reason = self.core.state.ending or ""
            return
        self._at(RESTART_S, self._deliver, events.Restarted(self._settings.model_dump_json(), "", ()))

    def _replayed(self, snapshot: tuple[int, bytes] | None) -> tuple[Core, list[dict[str, object]]]:
        after, image = snapshot or (0, b"")
        strategies = load_strategies(self._settings)
        core = thaw(image, strategies) if snapshot else Core(self._settings, strategies)
        lines: list[dict[str, object]] = []
        for now, event in self.history[after:]:
            lines += [c.metrics for c in core.step(now, event) if isinstance(c, ReportStep)]
        return core, lines

    # -- links ------------------------------------------------------------------------------------------

    def _send(self, peer: str, messages: list[Message]) -> None:
        process = self._processes.get(peer)
        if process is not None and process.is_alive:
            link = self._link(process)
            for message in messages:
                self._transmit(link, "down", link.down.send(message))

    def _say(self, process: _Process, messages: list[Message]) -> None:
        link = self._link(process)
        for message in messages:
            process.said_s = self._now
            self._transmit(link, "up", link.up.send(message))

    def _link(self, process: _Process) -> _Link:
        return self._links.setdefault(process.peer, _Link(process))

    def _transmit(self, link: _Link, way: str, packet: Packet) -> None:
        copies = 0 if self._chance("lost") else 2 if self._chance("doubled") else 1
        for _ in range(copies):
            delay_s = self._faults.delay_s(is_slow=self._now < link.process.slow_until_s)
            if self._chance("late"):
                delay_s += self._dice.expovariate(1 / self.plagues.late_s)
            self._at(LINK_S + delay_s, self._packet, link, way, packet)
        if packet.sequence and way not in link.resending:
            link.resending.add(way)
            self._at(RESEND_S, self._resend, link, way)

    def _resend(self, link: _Link, way: str) -> None:
        link.resending.discard(way)
        if link.process.is_alive and not (link.is_paused and way == "up"):
            for packet in (link.up if way == "up" else link.down).resend():
                self._transmit(link, way, packet)
        elif link.process.is_alive:
            link.resending.add(way)
            self._at(RESEND_S, self._resend, link, way)

    def _packet(self, link: _Link, way: str, packet: Packet) -> None:
        process = link.process
        if not process.is_alive:
            return
        if way == "down" and link.is_paused:
            link.held.append((way, packet))
            return
        session = link.down if way == "up" else link.up
        is_new = session.receive(packet)
        if packet.sequence:
            back = Packet(0, session.received, Beat(), ())
            self._transmit(link, "down" if way == "up" else "up", back)
        if is_new and way == "up":
            self._deliver(Received(process.peer, packet.message))
        elif is_new and isinstance(packet.message, Pull) and not self._has(packet.message):
            self._say(process, [PullFailed(packet.message.policy_version, "it is not there")])
        elif is_new and not isinstance(packet.message, Beat):
            self._hear(process, [packet.message])

    def _has(self, pull: Pull) -> bool:
        return pull.policy_version in self.disk.files

    # -- SIGSTOP and SIGCONT ----------------------------------------------------------------------------

    def _pause_one(self) -> None:
        if self._is_over():
            return
        awake = [p for p in self._processes.values() if p.is_alive and not self._link(p).is_paused]
        if awake:
            self.counts["pauses_s"] += 1
            link = self._link(self._dice.choice(awake))
            link.is_paused = True
            self._at(self._dice.uniform(0.2, self.plagues.longest_pause_s), self._continue, link)
        self._at(self._dice.expovariate(1 / self.plagues.pauses_s), self._pause_one)

    def _continue(self, link: _Link) -> None:
        """It goes on where it stopped; if it was given up meanwhile, its late words reach the core itself."""
        link.is_paused, held, process = False, link.held, link.process
        link.held = []
        if not process.is_alive:
            for message in process.worker.wake(self._now):
                self._deliver(Received(process.peer, message))
            return
        for way, packet in held:
            self._packet(link, way, packet)
        process.wake_s = None
        self._say(process, process.worker.wake(self._now))
        self._wake_later(process)

    def _wake(self, process: _Process, at: float) -> None:
        if not self._link(process).is_paused:
            super()._wake(process, at)

    def _beat(self, process: _Process) -> None:
        if process.is_alive and self._link(process).is_paused:
            self._at(RESEND_S, self._beat, process)
        else:
            super()._beat(process)


def trained_once(simulation: FaultySimulation, *, steps: int) -> list[int]:
    """All groups that were trained, in order, every step once; a batch that was fed again counts once.

    Raises: AssertionError if a group is in two batches, or a step is missing.
    """
    batches = simulation.disk.batches
    assert list(batches) == list(range(steps)), f"steps {list(batches)}"
    groups = sorted(group for batch in batches.values() for group in batch)
    assert len(groups) == len(set(groups)), "a prompt was trained twice"
    return groups
