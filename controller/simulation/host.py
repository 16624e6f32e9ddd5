"""Drives the core and its simulated workers from one heap of scheduled actions.

Invariants: time never goes back; messages between two ends keep their order; a worker that was killed or
hangs neither receives nor sends; commands of one step to one worker arrive together."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Any

from controller.config.models import Config
from controller.config.strategies import load_strategies
from controller.core.commands import (
    Command,
    Finish,
    Forget,
    ReadHeldOut,
    ReadPrompts,
    ReportEvaluation,
    ReportStep,
    Send,
    Spawn,
    Warn,
)
from controller.core.core import Core
from controller.core.events import (
    RULES,
    Event,
    HeldOutRead,
    PromptsRead,
    Received,
    Started,
    Tick,
    WorkerExited,
)
from controller.simulation.charges import Desk
from controller.simulation.faults import Faults, FaultSource, Kind
from controller.simulation.records import Load, TrainStart, train_start
from controller.simulation.simulated_workers import Cluster, Simulated
from protocol.ids import PeerId
from protocol.messages import Attach, Beat, Message, Role, Train
from strategies.kinds import Strategies
from workers.simulated import SimulatedRollout, SimulatedTrainer

LINK_S = 0.001  # from the controller to a worker
EXIT_S = 0.01  # until the supervisor sees that a process ended
BEATS_PER_LEASE = 4


@dataclass(slots=True)
class _Process:
    peer: PeerId
    name: str
    role: Role
    worker: Simulated
    is_alive: bool = True
    heard_s: float = 0.0  # arrival of the last message to it
    said_s: float = 0.0  # arrival of its last message
    slow_until_s: float = -1.0  # until when its link is slow
    wake_s: float | None = None  # time of its valid wake-up call


@dataclass(slots=True)
class Outcome:
    """The results of a simulated run."""

    is_success: bool = False
    reason: str = ""
    lines: list[dict[str, object]] = field(default_factory=list)
    evaluations: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)
    starts: list[TrainStart] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    digest: str = ""  # of all commands, in order; "" without `with_digest`
    events: int = 0  # that the core has taken
    happenings: int = 0  # actions taken from the heap

    @property
    def trained(self) -> list[list[int]]:
        """Groups of each step."""
        return [list(start.groups) for start in self.starts]


class Simulation:
    """One run in virtual time."""

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 0,
        faults: Faults | None = None,
        prompts: int | None = None,
        check_every: int = 0,
        with_digest: bool = True,
        core: Core | None = None,
        strategies: Strategies | None = None,
        now: float = 0.0,
    ) -> None:
        """A simulation that has not begun.

        `prompts`: number of prompts (None: no end); `check_every`: events between two calls of Core.check;
        `core`: go on with this core at `now` instead of a new one, with workers added by `adopt`;
        `strategies`: of a new core, instead of those that the configuration names.
        """
        self.core = core or Core(config, strategies or load_strategies(config))
        self._is_begun = core is not None
        self._now = now
        self.cluster = Cluster(config, seed)
        self._desk = Desk(config.simulation.event_s, take=self._step, on=self._on)
        self._rng = random.Random(seed)
        self._faults = FaultSource(faults or Faults.of(config.simulation.faults), self._rng)
        self._prompts, self._read = prompts, 0
        self._check_every = check_every
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = self._spawned = 0
        self._sample_s = now
        self._ticking: float | None = None
        self._processes: dict[PeerId, _Process] = {}
        self._rollouts: list[SimulatedRollout] = []  # all instances so far, lost ones too
        self._digest = blake2b(digest_size=16) if with_digest else None
        controller = config.controller
        self._silence_s = max(controller.beat_s, controller.lease_s / BEATS_PER_LEASE)
        self._started_s = now  # when the trainer last got a batch
        self.on_start: Callable[[TrainStart], None] = lambda start: None
        """Called with each batch that goes to the trainer."""
        self.outcome = Outcome()

    def run(self, *, max_events: int = 5_000_000, patience_s: float = inf) -> Outcome:
        """Run to the end of the run.

        Raises: RuntimeError if the end does not come within `max_events`, or no batch goes to the trainer in
        `patience_s` of virtual time.
        """
        if not self._is_begun:
            self._deliver(Started(RULES))
        self._faults.start(self._at, self._strike)
        heap, outcome = self._heap, self.outcome
        while heap and not self.core.state.finished:
            self._now, _, action, arguments = heapq.heappop(heap)
            outcome.happenings += 1
            if self._now >= self._sample_s:
                self._sample()
            action(*arguments)
            if outcome.events > max_events or outcome.happenings > 10 * max_events:
                waiting = self.core.snapshot().waiting_for
                raise RuntimeError(f"No end after {outcome.events} events; the run waits for {waiting}.")
            if self._now > self._started_s + patience_s:
                raise RuntimeError(
                    f"No batch went to the trainer in {patience_s:.0f} s of virtual time; the run waits for "
                    f"{self.core.snapshot().waiting_for}."
                )
        if not self.core.state.finished:
            waiting = self.core.snapshot().waiting_for
            raise RuntimeError(f"Nothing is left to happen; the run waits for {waiting}.")
        outcome.summary = self.core.summary()
        outcome.digest = self._digest.hexdigest() if self._digest else ""
        return outcome

    def adopt(self, peer: PeerId, name: str, role: Role, worker: Simulated) -> None:
        """Add a worker that the core knows, or will know once it attaches."""
        process = _Process(peer, name, role, worker)
        self._processes[peer] = process
        if isinstance(worker, SimulatedRollout):
            self._rollouts.append(worker)
        process.said_s = process.heard_s = self._now
        self._at(self._silence_s, self._beat, process)
        self._wake_later(process)

    # -- the core ---------------------------------------------------------------------------------------

    def _at(self, delay_s: float, action: Callable[..., None], *arguments: object) -> None:
        self._on(self._now + delay_s, action, *arguments)

    def _on(self, time_s: float, action: Callable[..., None], *arguments: object) -> None:
        """Schedule an action at exactly this time, to the last bit.

        A worker that is woken a rounding error too early would do nothing.
        """
        self._count += 1
        heapq.heappush(self._heap, (max(self._now, time_s), self._count, action, arguments))

    def _deliver(self, event: Event) -> None:
        self._desk.bring(self._now, event)

    def decide(self, now: float, event: Event) -> list[Command]:
        """What the core wants after an event. Recorders and benchmarks put a function of their own here."""
        return self.core.step(now, event)

    def _step(self, event: Event) -> None:
        commands = self.decide(self._now, event)
        self.outcome.events += 1
        if self._check_every and self.outcome.events % self._check_every == 0:
            self.core.check()
        letters: dict[PeerId, list[Message]] = {}
        for command in commands:
            if self._digest is not None:
                self._digest.update(repr(command).encode())
            if isinstance(command, Send):
                letters.setdefault(command.peer, []).append(command.message)
            else:
                self._execute(command)
        for peer, messages in letters.items():
            self._send(peer, messages)
        deadline = self.core.next_deadline()
        if deadline is not None and (self._ticking is None or deadline < self._ticking):
            self._ticking = deadline
            self._on(deadline, self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        if deadline == self._ticking:
            self._ticking = None
            self._deliver(Tick())

    def _execute(self, command: Command) -> None:
        match command:
            case Spawn(name, role, delay_s):
                self._at(delay_s, self._spawn, name, role)
            case ReadPrompts(count):
                self._at(0.0, self._read_prompts, count)
            case ReadHeldOut(first_group):
                self._at(0.0, self._deliver, HeldOutRead(first_group, self.cluster.held_out, "simulated"))
            case Forget(_, name):
                for process in [p for p in self._processes.values() if p.name == name]:
                    self._kill(process)
            case ReportStep(line):
                self.outcome.lines.append(line)
            case ReportEvaluation(line):
                self.outcome.evaluations.append(line)
            case Warn(text):
                self.outcome.warnings.append(text)
            case Finish(is_success, reason):
                self.outcome.is_success, self.outcome.reason = is_success, reason
            case _:
                pass

    def _read_prompts(self, count: int) -> None:
        first = self._read
        if self._prompts is not None:
            count = min(count, self._prompts - first)
        self._read += count
        is_end = self._prompts is not None and self._read >= self._prompts
        sources, workload = (), self.cluster.workload
        known = range(first, self._read) if workload.prompts else ()
        prompts = tuple(1 + workload.prompt(group) for group in known)
        self._deliver(PromptsRead(first, count, is_end, sources, prompts))

    # -- workers ----------------------------------------------------------------------------------------

    def _spawn(self, name: str, role: Role) -> None:
        self._spawned += 1
        peer = f"{self._spawned:032x}"
        self.adopt(peer, name, role, self.cluster.make(name, role, self._now))
        self._say(self._processes[peer], [Attach(role, name, self._spawned, self.host_of(name))])

    def host_of(self, name: str) -> str:
        """The host that a worker of this name reports."""
        return "simulated"

    def _send(self, peer: PeerId, messages: list[Message]) -> None:
        process = self._processes.get(peer)
        if process is not None and process.is_alive:
            delay_s = self._faults.delay_s(is_slow=self._now < process.slow_until_s)
            leaves_s = self._now + self._desk.event_s
            process.heard_s = max(process.heard_s, leaves_s + LINK_S + delay_s)
            self._on(process.heard_s, self._hear, process, messages)

    def _hear(self, process: _Process, messages: list[Message]) -> None:
        if not process.is_alive:
            return
        out: list[Message] = []
        for message in messages:
            if isinstance(message, Train):
                self._record(message, process.worker)
            out += process.worker.handle(self._now, message)
        self._say(process, out + process.worker.wake(self._now))
        self._wake_later(process)

    def _wake_later(self, process: _Process) -> None:
        at = process.worker.next_wake_s()
        if at is not None and (process.wake_s is None or at != process.wake_s):
            process.wake_s = at
            self._on(at, self._wake, process, at)

    def _wake(self, process: _Process, at: float) -> None:
        if process.is_alive and process.wake_s == at:
            process.wake_s = None
            self._say(process, process.worker.wake(self._now))
            self._wake_later(process)

    def _say(self, process: _Process, messages: list[Message]) -> None:
        """Send messages of a worker, in order; a message without delay is delivered at once."""
        for message in messages:
            delay_s = self._faults.delay_s(is_slow=self._now < process.slow_until_s)
            process.said_s = max(process.said_s, self._now + delay_s)
            if process.said_s > self._now:
                self._on(process.said_s, self._arrive, process, message)
            else:
                self._arrive(process, message)

    def _arrive(self, process: _Process, message: Message) -> None:
        if process.is_alive:
            self._deliver(Received(process.peer, message))

    def _beat(self, process: _Process) -> None:
        """Send a heartbeat if the worker has sent no other message for a while."""
        if process.is_alive:
            due_s = process.said_s + self._silence_s
            if self._now >= due_s:
                self._say(process, [Beat()])
                due_s = max(process.said_s, self._now) + self._silence_s
            self._on(due_s, self._beat, process)

    # -- records ----------------------------------------------------------------------------------------

    def _record(self, message: Train, trainer: Simulated) -> None:
        assert isinstance(trainer, SimulatedTrainer)
        tokens = self.core.snapshot().tokens
        spent = (tokens.generated, tokens.aborted, tokens.filtered, tokens.lost)
        instances = sum(p.role == "rollout" for p in self._processes.values())
        start = train_start(self._now, message, self._rollouts, trainer, spent=spent, instances=instances)
        self._started_s = self._now
        self.outcome.starts.append(start)
        self.on_start(start)

    def _sample(self) -> None:
        processes = self._processes.values()
        living = {p.name: p.worker for p in processes if isinstance(p.worker, SimulatedRollout)}
        self._sample_s = self._now + self.outcome.load.take(self._now, living)

    # -- faults -----------------------------------------------------------------------------------------

    def _strike(self, kind: Kind) -> None:
        everybody = ("rollout", "reward", "trainer", "agent")
        roles = {"reward_kills": ("reward",), "agent_kills": ("agent",), "slow_links": everybody}
        role = roles.get(kind, ("rollout",))
        victims = [p for p in self._processes.values() if p.is_alive and p.role in role]
        if victims:
            self._harm(self._rng.choice(victims), kind)
        self._faults.again(kind, self._at, self._strike)

    def _harm(self, victim: _Process, kind: Kind) -> None:
        if kind == "slow_links":
            victim.slow_until_s = self._now + self._faults.spell_s()
        elif kind == "stragglers":
            self._set_speed(victim, 1 / self._faults.faults.straggler_factor)
            self._at(self._faults.spell_s(), self._set_speed, victim, 1.0)
        elif self._faults.is_hang():
            victim.is_alive = False  # silent: the core must find out by its lease
        else:
            self._kill(victim)

    def _set_speed(self, process: _Process, factor: float) -> None:
        if process.is_alive and isinstance(process.worker, SimulatedRollout):
            speed = factor * self.cluster.speed(process.name)
            self._say(process, process.worker.set_speed(self._now, speed))
            self._wake_later(process)

    def _kill(self, process: _Process) -> None:
        if self._processes.pop(process.peer, None) is not None:
            process.is_alive = False
            exited = WorkerExited(process.name, process.role, -9, "")
            self._at(EXIT_S, self._deliver, exited)
