"""The production core in virtual time: an event heap, simulated workers, and faults from a seed.

Invariants: the core is the very object that the shell drives; messages between one pair of ends keep their
order, as the session guarantees; a killed worker never speaks again; the same seed gives the same run,
command for command.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from controller.commands import Command, Finish, Forget, ReadPrompts, ReportStep, Send, Spawn, Warn
from controller.config import Config
from controller.core import Core
from controller.events import Event, PromptsRead, Received, Started, Tick, WorkerExited
from protocol.ids import PeerId
from protocol.messages import Attach, Beat, Message, Role
from workers.simulated import Latencies, SimulatedReward, SimulatedRollout, SimulatedTrainer

Simulated = SimulatedRollout | SimulatedReward | SimulatedTrainer


@dataclass(frozen=True, slots=True)
class Faults:
    """Rates per virtual second; a worker is killed, or falls silent for good while its process lives."""

    rollout_kills: float = 0.0
    reward_kills: float = 0.0
    hang_share: float = 0.3  # of those faults that are silence instead of death


@dataclass(slots=True)
class _Process:
    peer: PeerId
    name: str
    role: Role
    worker: Simulated
    is_alive: bool = True
    last_sent_s: float = 0.0
    wake: int = 0  # generation of its wake-up call; an older one is void


@dataclass(slots=True)
class Outcome:
    """What a simulated run came to."""

    is_success: bool = False
    reason: str = ""
    lines: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    summary: dict[str, object] = field(default_factory=dict)
    trained: list[list[int]] = field(default_factory=list)  # groups of each step
    digest: str = ""  # of all commands, in order
    events: int = 0


class Simulation:
    """One run in virtual time."""

    def __init__(
        self,
        config: Config,
        *,
        seed: int = 0,
        latencies: Latencies | None = None,
        faults: Faults | None = None,
        prompts: int | None = None,
        check_every: int = 0,
        make_rollout: Callable[[int, Latencies], SimulatedRollout] | None = None,
    ) -> None:
        """`prompts`: how many there are (None: no end); `check_every`: events between two calls of
        Core.check."""
        self.core = Core(config)
        self.latencies = latencies or Latencies()
        self._faults = faults or Faults()
        self._rng = random.Random(seed)
        self._prompts, self._read = prompts, 0
        self._check_every = check_every
        self._make_rollout = make_rollout or SimulatedRollout
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._spawned = 0
        self._now = 0.0
        self._ticking: float | None = None
        self._processes: dict[PeerId, _Process] = {}
        self._digest = blake2b(digest_size=16)
        self.outcome = Outcome()

    def run(self, *, max_events: int = 5_000_000) -> Outcome:
        """Run to the end. Raises: RuntimeError if it does not come within `max_events`."""
        self._deliver(Started())
        self._schedule_faults()
        while self._heap and not self.core.state.finished:
            self._now, _, action = heapq.heappop(self._heap)
            action()
            if self.outcome.events > max_events:
                waiting = self.core.snapshot().waiting_for
                raise RuntimeError(f"No end after {max_events} events; the run waits for {waiting}.")
        if not self.core.state.finished:
            raise RuntimeError(
                f"Nothing is left to happen; the run waits for {self.core.snapshot().waiting_for}."
            )
        self.outcome.summary = self.core.summary()
        self.outcome.digest = self._digest.hexdigest()
        return self.outcome

    def _at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._now + delay_s, self._count, action))

    def _deliver(self, event: Event) -> None:
        commands = self.core.step(self._now, event)
        self.outcome.events += 1
        if self._check_every and self.outcome.events % self._check_every == 0:
            self.core.check()
        for command in commands:
            self._digest.update(repr(command).encode())
            self._execute(command)
        deadline = self.core.next_deadline()
        if deadline is not None and (self._ticking is None or deadline < self._ticking):
            self._ticking = deadline
            self._at(max(0.0, deadline - self._now), self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self._deliver(Tick())

    def _execute(self, command: Command) -> None:
        match command:
            case Send(peer, message):
                process = self._processes.get(peer)
                if process is not None and process.is_alive:
                    self._at(0.001, lambda: self._hear(process, message))
            case Spawn(name, role, delay_s):
                self._at(delay_s, lambda: self._spawn(name, role))
            case ReadPrompts(count):
                first = self._read
                left = count if self._prompts is None else min(count, self._prompts - self._read)
                self._read += left
                is_end = self._prompts is not None and self._read >= self._prompts
                self._at(0.0, lambda: self._deliver(PromptsRead(first, left, is_end)))
            case Forget(_, name):
                for process in [p for p in self._processes.values() if p.name == name]:
                    self._kill(process)
            case ReportStep(line):
                self.outcome.lines.append(line)
            case Warn(text):
                self.outcome.warnings.append(text)
            case Finish(is_success, reason):
                self.outcome.is_success, self.outcome.reason = is_success, reason
            case _:
                pass

    # -- processes --------------------------------------------------------------------------------------

    def _spawn(self, name: str, role: Role) -> None:
        self._spawned += 1
        seed = self._rng.getrandbits(32)
        makers: dict[Role, Callable[[], Simulated]] = {
            "rollout": lambda: self._make_rollout(seed, self.latencies),
            "reward": lambda: SimulatedReward(seed, self.latencies),
            "trainer": lambda: SimulatedTrainer(self.latencies),
        }
        process = _Process(f"{self._spawned:032x}", name, role, makers[role]())
        self._processes[process.peer] = process
        self._say(process, [(0.1, Attach(role, name, self._spawned, "simulated")), *process.worker.start()])
        self._beat(process)

    def _hear(self, process: _Process, message: Message) -> None:
        if process.is_alive:
            if message.tag == 39:
                self.outcome.trained.append(sorted({item.group for item in message.items}))  # type: ignore[attr-defined]
            self._say(process, process.worker.handle(self._now, message))
            self._wake_later(process)

    def _say(self, process: _Process, out: list[tuple[float, Message]]) -> None:
        """Send in the order of times, and never before what was said earlier."""
        for delay_s, message in sorted(out, key=lambda item: item[0]):
            at = self._now + delay_s
            if message.tag == Beat.tag or process.role != "trainer":
                at = max(at, process.last_sent_s)
                process.last_sent_s = at
            self._at(at - self._now, lambda m=message: self._arrive(process, m))

    def _arrive(self, process: _Process, message: Message) -> None:
        if process.is_alive:
            self._deliver(Received(process.peer, message))

    def _beat(self, process: _Process) -> None:
        if not process.is_alive:
            return
        out: list[tuple[float, Message]] = [(0.0, Beat())]
        if isinstance(process.worker, SimulatedRollout):
            out = [*process.worker.report(self._now), *out]
        self._say(process, out)
        self._wake_later(process)
        self._at(self.core.state.config.controller.beat_s, lambda: self._beat(process))

    def _wake_later(self, process: _Process) -> None:
        if not isinstance(process.worker, SimulatedRollout):
            return
        at = process.worker.next_ending_s()
        process.wake += 1
        if at is not None:
            wake = process.wake
            self._at(max(0.0, at - self._now) + 1e-6, lambda: self._wake(process, wake))

    def _wake(self, process: _Process, wake: int) -> None:
        if process.is_alive and wake == process.wake:
            assert isinstance(process.worker, SimulatedRollout)
            self._say(process, process.worker.advance(self._now))
            self._wake_later(process)

    # -- faults -----------------------------------------------------------------------------------------

    def _schedule_faults(self) -> None:
        for role, rate in (("rollout", self._faults.rollout_kills), ("reward", self._faults.reward_kills)):
            if rate > 0:
                self._at(self._rng.expovariate(rate), lambda r=role: self._fault(r))

    def _fault(self, role: Role) -> None:
        victims = [p for p in self._processes.values() if p.is_alive and p.role == role]
        if victims:
            victim = self._rng.choice(victims)
            if self._rng.random() < self._faults.hang_share:
                victim.is_alive = False  # silent: the core must find out by its lease
            else:
                self._kill(victim)
        rate = self._faults.rollout_kills if role == "rollout" else self._faults.reward_kills
        self._at(self._rng.expovariate(rate), lambda: self._fault(role))

    def _kill(self, process: _Process) -> None:
        if self._processes.pop(process.peer, None) is not None:
            process.is_alive = False
            exited = WorkerExited(process.name, process.role, -9, "")
            self._at(0.01, lambda: self._deliver(exited))
