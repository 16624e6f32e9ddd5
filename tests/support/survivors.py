"""A faulty simulation in which rollout workers have something in hand when their controller is killed.

Invariants: a remote worker goes on generating while no controller is there, comes back at a time drawn from
the seed, or never; a local one leaves what it has to its successor, unless it is killed too; both hand over
by the production code; of every token it is known how often it was sampled.
"""

from copy import deepcopy

from controller.config.models import Config
from controller.core.commands import Command, Forget
from controller.simulation import Faults
from controller.simulation.host import _Process
from protocol import messages
from protocol.messages import (
    Abort,
    Attach,
    Beat,
    Holding,
    Interrupt,
    Keep,
    Message,
    Ready,
    Role,
    Route,
    Welcome,
)
from tests.support.fault_host import RESTART_S, FaultySimulation, Plagues
from workers.rollout.unacknowledged import Unacknowledged
from workers.simulated import SimulatedRollout

RETURN_S = 2.0  # mean time between the start of a controller and the return of a worker
REPLACED_S = 2.0  # until another process takes the place of a remote one that is gone
SAID_AT_ONCE = (Attach, Beat, Holding, Ready)
SAID_BEFORE_KEEP = (Attach, Beat, Holding)  # by the successor of a local worker
Sampled = dict[tuple[int, int], list[tuple[SimulatedRollout, "Attempt"]]]


class Attempt:
    """One attempt at a response: where in it the attempt began, and the engine's own count of its tokens."""

    def __init__(self, begin: int, request) -> None:
        self.begin, self.request = begin, request


class CountedRollout(SimulatedRollout):
    """Knows which of the tokens that it is asked for were sampled before, by whomever."""

    sampled: Sampled
    again: list[int]

    def _add(self, now: float, route: Route) -> None:
        super()._add(now, route)
        begin = sum(segment.count for segment in route.segments)
        before = self.sampled.setdefault((route.group, route.member), [])
        furthest = max((a.begin + worker.engine.tokens(a.request) for worker, a in before), default=0)
        self.again.append(max(0, furthest - begin))
        tag = (route.group, route.member, route.attempt)
        before.append((self, Attempt(begin, self._routes[tag][0])))


class SurvivingSimulation(FaultySimulation):
    """Beside the local instances, which leave last words, `remote` ones that no controller has started."""

    def __init__(
        self, settings: Config, *, seed: int, prompts: int, plagues: Plagues, remote: int = 1,
        gone_share: float = 0.1, faults: Faults | None = None, check_every: int = 1,
        crash_at: int | None = None,
    ) -> None:  # fmt: skip
        """`gone_share`: of the workers whose controller is killed, those that never tell what they had."""
        super().__init__(
            settings, seed=seed, prompts=prompts, plagues=plagues, faults=faults, check_every=check_every,
            crash_at=crash_at,
        )  # fmt: skip
        self.again: list[int] = []
        """For each route, the tokens behind its beginning that had been sampled before."""
        self._sampled: Sampled = {}
        self._kept = {f"node-{i}": Unacknowledged() for i in range(remote)}
        self._adrift: dict[str, _Process] = {}  # without a controller; by name
        self._left: dict[str, tuple[Unacknowledged, int]] = {}  # by local workers, with their versions
        self._files: dict[str, tuple[Unacknowledged, int]] = {}  # again, until a controller has heard them
        self._pending: dict[str, list[Message]] = {}  # what a successor says behind them
        self._gone_share = gone_share
        make = self.cluster.make

        def counted(name: str, role: Role, now: float):
            made = make(name, role, now)
            if isinstance(made, SimulatedRollout):
                made.__class__ = CountedRollout
                made.sampled, made.again = self._sampled, self.again  # type: ignore[attr-defined]
            return made

        self.cluster.make = counted  # type: ignore[method-assign]
        for name in self._kept:
            self._at(0.0, self._begin, name)

    def _begin(self, name: str) -> None:
        self._kept[name] = Unacknowledged()
        self._spawn(name, "rollout")

    # -- the controller is gone -------------------------------------------------------------------------

    def _crash(self) -> None:
        survivors, self._adrift = self._adrift, {}
        for process in self._processes.values():
            if isinstance(process.worker, SimulatedRollout):
                said = _catch_up(process.worker, self._now)  # what it has sampled by now, it has sampled
                if process.name in self._files and self._unacknowledged(process):
                    self._left[process.name] = self._files[process.name]
                if not process.is_alive or process.worker.policy_version < 0:
                    continue
                if process.name in self._kept:
                    survivors[process.name] = process
                    self._cut(process, said)
                elif self._dice.random() >= self._gone_share:
                    self._leave(process, said)
        super()._crash()
        for name in self._kept:
            late_s = RESTART_S + self._dice.expovariate(1 / RETURN_S)
            if name in survivors and self._dice.random() >= self._gone_share:
                self._drift(survivors[name], late_s)
            else:
                self._at(late_s + REPLACED_S, self._begin, name)

    def _cut(self, process: _Process, said: list[Message]) -> None:
        self._kept[process.name].cut(process.peer, self._unacknowledged(process))
        for message in said:
            self._kept[process.name].add(message, ())

    def _unacknowledged(self, process: _Process) -> list[tuple[Message, tuple[bytes, ...]]]:
        return [(packet.message, packet.frames) for packet in self._link(process).up.resend()]

    def _leave(self, process: _Process, said: list[Message]) -> None:
        """Last words: everything ends where it stands, and waits in a file for the next one of this name."""
        worker, unacknowledged = process.worker, Unacknowledged()
        assert isinstance(worker, SimulatedRollout)
        unacknowledged.cut(process.peer, self._unacknowledged(process))
        version = worker.policy_version
        for message in said + worker.handle(self._now, Interrupt(tuple(worker.in_hand()))):
            unacknowledged.add(message, ())
        self._left[process.name] = unacknowledged, version
        self._files.pop(process.name, None)

    def _drift(self, process: _Process, until_s: float) -> None:
        self._adrift[process.name] = process
        self._at(until_s, self._return, process)

    def _return(self, former: _Process) -> None:
        """Attach as another peer, with the same engine and all that was said to nobody."""
        worker, name = former.worker, former.name
        del self._adrift[name]
        assert isinstance(worker, SimulatedRollout)
        for message in _catch_up(worker, self._now):
            self._kept[name].add(message, ())
        self._rollouts.remove(worker)
        self._spawned += 1
        peer = f"{self._spawned:032x}"
        self.adopt(peer, name, "rollout", worker)
        self._say(self._processes[peer], [Attach("rollout", name, self._spawned, "simulated")])

    # -- a remote worker --------------------------------------------------------------------------------

    def _say(self, process: _Process, messages: list[Message]) -> None:
        if process.name in self._left:
            if messages and isinstance(messages[0], Attach):
                self._pending[process.name] = []
            pending = [message for message in messages if not isinstance(message, SAID_BEFORE_KEEP)]
            self._pending[process.name] += pending
            messages = [message for message in messages if isinstance(message, SAID_BEFORE_KEEP)]
        unacknowledged = self._kept.get(process.name)
        if unacknowledged is not None and unacknowledged.is_pending:
            for message in messages:
                unacknowledged.add(message, ())
            messages = [message for message in messages if isinstance(message, SAID_AT_ONCE)]
        super()._say(process, messages)

    def _hear(self, process: _Process, messages: list[Message]) -> None:
        unacknowledged, worker = self._kept.get(process.name), process.worker
        if process.name in self._left and process.is_alive:
            self._succeed(process, messages)
            return
        if unacknowledged is None or not unacknowledged.is_pending or not process.is_alive:
            super()._hear(process, messages)
            return
        assert isinstance(worker, SimulatedRollout)
        for message in messages:
            if isinstance(message, Welcome):
                self._say(
                    process, [unacknowledged.holding(worker.policy_version, worker.in_hand()), worker.ready()]
                )
            elif isinstance(message, Keep):
                self._hand_over(process, message)
            else:
                super()._hear(process, [message])

    def _succeed(self, process: _Process, messages: list[Message]) -> None:
        """A local worker hands over what its forerunner left, before anything else."""
        unacknowledged, version = self._left[process.name]
        for message in messages:
            if isinstance(message, Welcome):
                unacknowledged.cut(process.peer, ())
                self._say(process, [unacknowledged.holding(version, {})])
            elif isinstance(message, Keep):
                del self._left[process.name]
                self._files[process.name] = deepcopy(unacknowledged), version
                words = [word for word, _ in unacknowledged.release(message)]
                self._say(process, words + self._pending.pop(process.name, []))
            else:
                super()._hear(process, [message])

    def _hand_over(self, process: _Process, keep: Keep) -> None:
        worker = process.worker
        assert isinstance(worker, SimulatedRollout)
        self._say(process, worker.wake(self._now))  # kept, still
        wanted = {attempt[:3] for attempt in keep.attempts}
        worker.handle(self._now, Abort(tuple(tag for tag in worker.in_hand() if tag not in wanted)))
        self._say(process, [message for message, _ in self._kept[process.name].release(keep)])
        self._wake_later(process)

    # -- what happens to it -----------------------------------------------------------------------------

    def _execute(self, command: Command) -> None:
        """One that was given up hears of it when it speaks again, and attaches again."""
        if not isinstance(command, Forget) or command.name not in self._kept:
            super()._execute(command)
            return
        process = self._processes.pop(command.peer, None)
        if process is None:
            return
        assert isinstance(process.worker, SimulatedRollout)
        was_alive, process.is_alive = process.is_alive, False
        if was_alive and process.worker.policy_version >= 0:
            self._cut(process, [])
            self._drift(process, self._dice.uniform(0.1, RETURN_S))
        else:
            self._at(REPLACED_S, self._begin, process.name)

    def _kill(self, process: _Process) -> None:
        if isinstance(process.worker, SimulatedRollout) and process.is_alive:
            _catch_up(process.worker, self._now)
        if process.name not in self._kept:
            super()._kill(process)
        elif self._processes.pop(process.peer, None) is not None:  # nobody here sees that it ended
            process.is_alive = False
            self._at(REPLACED_S, self._begin, process.name)

    def _continue(self, link) -> None:
        if link.process.name in self._kept and not link.process.is_alive:
            link.is_paused, link.held = False, []  # it has another link
        else:
            super()._continue(link)


def _catch_up(worker: SimulatedRollout, now: float) -> list[messages.Message]:
    """What a worker that nobody has woken would have said by now."""
    said: list[Message] = []
    while (at := worker.next_wake_s()) is not None and at <= now:
        said += worker.wake(at)
    return said + worker.wake(now)
