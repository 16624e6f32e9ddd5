"""Membership: workers attach, get ready, detach and are lost; local ones are started again.

Invariants: a peer that is not attached changes nothing; a silent worker is lost after its lease, and its work
goes elsewhere; time in which the controller itself was stalled counts against no worker; a local worker that
cannot start ends the run only if its role has no other worker; while the run ends the trainer is still
started again as long as there is something to save, and others as long as an evaluation is in progress.
"""

from controller.core.commands import Forget, Progress, Spawn
from controller.core.decisions.supply.scoring import Scoring
from controller.core.decisions.training.training import Training
from controller.core.effects import recall, turns
from controller.core.effects.evaluation_rounds import EvaluationRounds
from controller.core.events import PeerFaulted, WorkerExited
from controller.core.state.recent_failures import Failure
from controller.core.state.registry import AgentWorker, Instance, LocalWorker, TextWorker, Worker
from controller.core.state.run_state import SIDES, RunState
from controller.core.state.views.instances import InstanceViews
from protocol.ids import PeerId
from protocol.messages import Attach, Close, Drain, Generated, Message, Ready, Role, Welcome, WorkerFailed
from protocol.settings import load_settings

RESPAWN_DELAY_S = 0.5  # doubled with each failure in a row
MAX_RESPAWN_DELAY_S = 10.0
MOST_SHOWN_CHARS = 300  # of one line of a log


class Membership:
    """The workers that take part in the run."""

    def __init__(
        self, state: RunState, views: InstanceViews, evaluation: EvaluationRounds,
        scoring: Scoring, training: Training, settings: str,
    ) -> None:  # fmt: skip
        self.state, self.views = state, views
        self.evaluation, self.scoring, self.training = evaluation, scoring, training
        self.settings = settings
        self.steps_before = 0
        """Train steps made before this controller process began."""
        self.first_given_up: dict[Role, tuple[str, str]] = {}
        """By role: the first worker that is not started again, and why."""
        self._vacant: dict[Role, tuple[float, str]] = {}
        """Roles whose last worker was closed for a fault and whose work no other has done since: deadline for
        a replacement, and the fault."""
        self._abandoned: dict[Role, str] = {}  # roles without a replacement in time, and the fault

    def start(self) -> None:
        """Ask for the local workers of the configuration."""
        config = self.state.config
        names: list[tuple[str, Role]] = [("trainer", "trainer")] if config.trainer.local else []
        names.extend((f"reward-{i}", "reward") for i in range(config.reward.workers))
        if not config.trainer.is_supervised:
            names.extend((name, "rollout") for name in config.local_instances)
        if config.agent.is_on:
            names.extend((f"agent-{i}", "agent") for i in range(config.agent.workers))
        for name, role in names:
            self.state.registry.local[name] = LocalWorker(name, role, deadline=None)
            self._spawn(name, 0.0)
        if not config.trainer.local:
            text = "trainer.local is off: the run waits until a trainer attaches (docs/clusters.md)."
            self.state.warn_once("no trainer", text)
        if config.rollout.instances == 0 and not config.trainer.is_supervised:
            text = "rollout.instances is 0: the run waits until a worker attaches (launch.py attach RUN)."
            self.state.warn_once("no rollout", text)

    def restart(self) -> None:
        """The controller was restarted: start local workers of its own."""
        for local in self.state.registry.local.values():
            local.deadline = None
        self.state.registry.local.clear()
        self.first_given_up.clear()
        self.steps_before = self.state.steps
        self._vacant, self._abandoned = {}, {}
        self.start()

    def attach(self, peer: PeerId, message: Attach) -> None:
        """A process introduces itself: accept it with Welcome, or close it with the reason."""
        registry = self.state.registry
        if peer in registry.workers:
            return
        former = next((w for w in registry.workers.values() if w.role == message.role == "trainer"), None)
        if former is not None and former.name == message.name and not self.state.config.trainer.local:
            self.state.warn_once(
                f"again {peer}", f"{former.name} has started over; its former self is let go."
            )
            # merely forgotten, a living former self would attach again, and the two would take turns for ever
            text = "Another process has attached under its name, and has taken its place."
            self.state.send(former.peer, Close(text, is_fault=False))
            self._lose(former.peer)
        elif former is not None:
            reason = "A trainer is attached already; one run has one. Use trainer.ranks for more processes."
            self.state.send(peer, Close(reason, is_fault=True))
            return
        if message.role == "rollout" and self.state.config.trainer.is_supervised:
            reason = "This run trains on given responses (trainer.algorithm: sft), so nothing is generated."
            self.state.send(peer, Close(reason, is_fault=True))
            return
        if message.role == "agent" and not self.state.config.agent.is_on:
            reason = "This run has no agent (no agent.function, no agent.command)."
            self.state.send(peer, Close(reason, is_fault=True))
            return
        if self._is_from_elsewhere(message):
            reason = "This run has devices only for workers that it starts itself (placement: colocated)."
            self.state.send(peer, Close(reason, is_fault=True))
            return
        worker = registry.attach(peer, message, self.state.now)
        worker.device = "own" if self.state.device == "own" or worker.role not in SIDES else "none"
        self._watch(worker)
        there = (other for other in registry.workers.values() if not other.is_absent)
        if sum(other.name == worker.name for other in there) > 1:
            worker.name = f"{worker.name}#{registry.attached_ever}"
        controller = self.state.config.controller
        settings = self.settings
        if message.role == "trainer":
            its = load_settings(settings).model_copy(update={"newest_version": self.state.steps})
            settings = its.model_dump_json()
        self.state.send(peer, Welcome(controller.beat_s, controller.lease_s, settings, name=worker.name))

    def _is_from_elsewhere(self, message: Attach) -> bool:
        """Whether it would use the device of a colocated run, and is not one of the run's own workers."""
        if self.state.device == "own" or message.role not in SIDES:
            return False
        registry = self.state.registry
        return message.name not in registry.local or registry.named(message.name) is not None

    def ready(self, worker: Worker, message: Ready) -> None:
        """The worker can be given work; `Plausibility` refuses a second Ready."""
        self.state.registry.make_ready(worker)
        self._watch(worker)  # the lease of a ready worker is shorter
        local = self.state.registry.local.get(worker.name)
        if local is not None:
            local.deadline = None
        if isinstance(worker, TextWorker | AgentWorker):
            worker.capacity = message.capacity

    def expects(self, role: Role) -> bool:
        """Whether a worker of this role is attached, or expected."""
        if role == "trainer" and not self.state.config.trainer.local and role not in self._abandoned:
            return not self.state.is_trainer_given_up  # an external trainer is started again from outside
        return self._is_staffed(role)

    def _is_staffed(self, role: Role) -> bool:
        registry = self.state.registry
        return role in {w.role for w in registry.workers.values()} | {w.role for w in registry.local.values()}

    @property
    def vacant_until(self) -> float | None:
        """Deadline for the first replacement of a worker that was closed; None if there is none."""
        if not self._vacant:  # nearly always
            return None
        return min(deadline for deadline, _ in self._vacant.values())

    def why_vacant(self, role: Role) -> str:
        """The fault of the last worker of this role; "" if its work has been done since, or may be yet."""
        if role in self._vacant:
            return self._vacant[role][1]
        if role in self.first_given_up and not self.expects(role):
            return self.first_given_up[role][1]
        return self._abandoned.get(role, "")

    def forgive(self, gap_s: float) -> None:
        """Extend deadlines by the time that the controller was stalled: no worker could attach in it."""
        self._vacant = {role: (deadline + gap_s, why) for role, (deadline, why) in self._vacant.items()}

    def filled(self, worker: Worker) -> None:
        """A worker of this role has done its work."""
        self._vacant.pop(worker.role, None)

    def reset_failures(self, worker: Worker) -> None:
        """The worker did its work: earlier failures do not count any more."""
        self.filled(worker)
        local = self.state.registry.local.get(worker.name)
        if local is not None:
            local.failures = 0

    def on_unknown_peer(self, peer: PeerId, message: Message) -> None:
        """Count a message of a peer that is not attached (any more), and close that peer."""
        if isinstance(message, Generated):
            self.state.accounts.take_late(sum(message.counts))
        self.state.accounts.counts["messages/late"] += 1
        reason = "This worker is not attached (any more); it was silent beyond its lease, or the run is over."
        self.state.send(peer, Close(reason, is_fault=False))

    def faulted(self, event: PeerFaulted, *, has_died: bool = False) -> None:
        """Close a peer that broke the protocol, and give its work to others.

        `has_died`: the groups that it scored may be the cause.
        """
        worker = self.state.registry.workers.get(event.peer)
        name = worker.name if worker else "a peer that never attached"
        self.state.accounts.counts["peers/faulted"] += 1
        who = _without_claims(worker.name) if worker else ""
        self._blame(worker, f"{name} was closed: {event.reason}", is_told=True)
        self.state.warn_counted(f"fault {who}", f"{name} was closed: {event.reason}")
        self.state.send(event.peer, Close(event.reason[:4096], is_fault=True))
        self._lose(event.peer, has_died=has_died)
        if worker is not None and not self._is_staffed(worker.role):
            deadline = self.state.now + self.state.config.controller.replace_s
            self._vacant.setdefault(worker.role, (deadline, f"{name} was closed: {event.reason}"))

    def failed(self, worker: Worker, message: WorkerFailed) -> None:
        """The worker reports that it cannot do its work."""
        local = self.state.registry.local.get(worker.name)
        if local is not None:
            self._blame(worker, message.reason)
        else:
            self._warn_lost(worker, "failed", f"{worker.name} gave up: {message.reason}")
        is_final = message.is_final or not worker.ready
        self._lose(worker.peer, has_died=isinstance(worker, Instance))
        if local is not None and is_final:
            local.failures = self.state.config.controller.respawns + 1

    def detach(self, worker: Worker, reason: str) -> None:
        """The worker leaves in good order."""
        self._warn_lost(worker, "detached", f"{worker.name} left the run: {reason}")
        self._lose(worker.peer)

    def drain(self, operator: PeerId, name: str) -> None:
        """Have a worker leave by order of an operator; a local one is not started again."""
        worker = self.state.registry.named(name)
        if worker is None or worker.role == "trainer":
            names = [w.name for w in self.state.registry.workers.values() if w.role != "trainer"] or ["none"]
            answer = Close(f"{name!r} cannot be drained; these workers can: {', '.join(names)}.", True)
        else:
            self.state.registry.local.pop(name, None)
            self.state.send(worker.peer, Drain())
            answer = Close(f"{name} was told to hand back what it has, and to leave.", False)
        self.state.send(operator, answer)
        self.state.emit(Forget(operator, ""))

    def exited(self, event: WorkerExited) -> None:
        """A local process ended: start it again, unless it cannot work."""
        local = self.state.registry.local.get(event.name)
        worker = self.state.registry.named(event.name)
        if worker is not None:
            self._lose(worker.peer, has_died=True)
        goes_on = self.state.ending_is_success and self.evaluation.holds_up_the_end
        if self.state.ending is not None and not goes_on and event.role != "trainer":
            self.state.registry.local.pop(event.name, None)  # neither its end nor a successor is awaited
            return
        if local is None:
            return
        how = f"was killed by signal {-event.exit_code}"
        if event.exit_code >= 0:
            how = f"ended with code {event.exit_code}"
        words = local.last_reason or f"{event.name} {how}. The end of its log:\n{event.last_words}"
        why = f"{event.name} {how}; it is started again.{_last_line(event)}"
        if local.is_told:
            why = f"{event.name} is started again."
        elif local.last_reason:
            why = f"{event.name}: {local.last_reason.splitlines()[0]} It is started again."
        local.failures += 1
        local.deadline = None
        if local.failures <= self.state.config.controller.respawns:
            self.state.accounts.counts["workers/respawned"] += 1
            failure = Failure(self.state.awake_s, event.name, local.last_reason or f"it {how}")
            self.state.failures.respawns.add(failure, fleet=len(self.state.registry.local))
            self.state.warn_once(f"exit {event.name} {local.failures}", why)
            again = local.failures - 1
            delay_s = min(RESPAWN_DELAY_S * 2 ** min(again, 10), MAX_RESPAWN_DELAY_S) if again else 0.0
            self._spawn(event.name, delay_s)
        else:
            self._give_up(local, words)

    def expire(self) -> None:
        """Lose workers that were silent beyond their lease or not ready in time; give up vacant roles."""
        while (deadline := self.state.registry.leases.next()) is not None and deadline <= self.state.now:
            late = self.state.registry.leases.first()
            if isinstance(late, Worker):
                self._expire_worker(late)
            else:
                self._expire_start(late)
        for role, (deadline, why) in list(self._vacant.items()) if self._vacant else ():
            if deadline <= self.state.now:
                self._expire_role(role, why)

    def _expire_role(self, role: Role, why: str) -> None:
        replace_s = self.state.config.controller.replace_s
        if self._is_staffed(role):  # by a worker that has done nothing yet, and may fail, too
            self._vacant[role] = (self.state.now + replace_s, why)
            return
        del self._vacant[role]
        self._abandoned[role] = why
        text = f"No {role} worker is left, and none has come within {replace_s:g} s (controller.replace_s)."
        self.state.end(f"{text} {why}", is_success=False)

    def _expire_worker(self, worker: Worker) -> None:
        silent_s, lease_s = self.state.now - worker.last_heard, self._lease_s(worker)
        text = f"{worker.name} was silent for {silent_s:.1f} s (lease {lease_s:g} s): its work moves."
        if worker.is_absent:
            text = f"{worker.name} did not come back within {lease_s:g} s of the restart: its work moves."
        self._blame(worker, text, is_told=True)
        self._warn_lost(worker, "lease", text)
        self.state.accounts.counts["workers/lost"] += 1
        self._lose(worker.peer, has_died=True)

    def _expire_start(self, local: LocalWorker) -> None:
        local.deadline = None
        limit_s = self.state.config.controller.attach_timeout_s
        local.last_reason = (
            f"{local.name} was not ready {limit_s:g} s after its start; see its log, or raise "
            "controller.attach_timeout_s."
        )
        worker = self.state.registry.named(local.name)
        self.state.emit(Forget(worker.peer if worker else "", local.name))

    def _watch(self, worker: Worker) -> None:
        worker.lease_s = self._lease_s(worker)
        self.state.registry.leases.watch(worker)

    def _warn_lost(self, worker: Worker, what: str, text: str) -> None:
        """Warn that a worker is gone.

        Of workers that were never ready only the 1st, 10th, 100th ... time: strangers can make any number.
        """
        if worker.ready:
            self.state.warn_once(f"{what} {worker.peer}", text)
        else:
            self.state.warn_counted(f"{what} {_without_claims(worker.name)}", text)

    def report_progress(self, name: str) -> None:
        """Report how many workers are ready, until the first step is made."""
        if self.state.steps != self.steps_before:
            return
        ready = sum(worker.ready for worker in self.state.registry.workers.values())
        expected = max(len(self.state.registry.local), ready)
        self.state.emit(Progress(ready / expected, f"workers: {name} is ready ({ready} of {expected})"))

    def _lease_s(self, worker: Worker) -> float:
        """The lease of a worker, which begins with Ready.

        Loading a model or an engine can hold the worker's interpreter for long.
        """
        controller = self.state.config.controller
        return controller.lease_s if worker.ready or worker.is_absent else controller.attach_timeout_s

    def _spawn(self, name: str, delay_s: float) -> None:
        local = self.state.registry.local[name]
        local.last_reason, local.is_told = "", False
        local.deadline = self.state.now + delay_s + self.state.config.controller.attach_timeout_s
        self.state.registry.leases.watch(local)
        self.state.emit(Spawn(name, local.role, delay_s))

    def _blame(self, worker: Worker | None, reason: str, *, is_told: bool = False) -> None:
        """Note why a local worker is closed: it will be killed, and its exit will not tell."""
        local = self.state.registry.local.get(worker.name) if worker is not None else None
        if local is not None and not local.last_reason:  # the first is the cause of the others
            local.last_reason, local.is_told = reason, is_told

    def _give_up(self, local: LocalWorker, words: str) -> None:
        """The worker is not started again; the run ends if its role is now empty."""
        del self.state.registry.local[local.name]
        name, first = self.first_given_up.setdefault(local.role, (local.name, words))
        if self.expects(local.role):
            self.state.warn_once(f"gave up {local.name}", f"{local.name} is not started again: {words}")
            return
        is_alike = first.replace(name, local.name) == words
        also = "" if is_alike else f"\nThe first to go was {name}: {first}"
        self.state.end(f"No {local.role} worker is left. {words}{also}", is_success=False)

    def _lose(self, peer: PeerId, *, has_died: bool = False) -> None:
        worker = self.state.registry.workers.get(peer)
        if has_died and isinstance(worker, TextWorker):
            self.scoring.on_died(worker)
        if has_died and isinstance(worker, Instance) and not worker.is_absent:
            self.state.lost_attempts += worker.running
        worker = self.remove(peer)
        if worker is None or worker.role != "trainer" or not self.state.config.trainer.local:
            return
        if worker.name not in self.state.registry.local:
            self.state.end(f"The trainer {worker.name} left the run.", is_success=False)

    def remove(self, peer: PeerId) -> Worker | None:
        """Remove a peer; its work goes elsewhere."""
        worker = self.state.registry.workers.get(peer)
        # an absent worker has no process any more, and its successor may have its name
        name = worker.name if worker and not worker.is_absent else ""
        self.state.registry.remove(peer)
        if isinstance(worker, Instance):
            self.views.forget(worker)
            recall.take_back_all(self.state, worker)
        elif isinstance(worker, TextWorker):
            self.scoring.on_lost(worker)
        elif isinstance(worker, AgentWorker):
            turns.lose_worker(self.state, worker)
        elif worker is not None:
            self.training.on_lost()
        self.state.emit(Forget(peer, name))
        return worker


def _without_claims(name: str) -> str:
    """The name of the worker's key; without keys, the name it gave itself, without its number."""
    return name.partition("#")[0].partition("/")[0]


def _last_line(event: WorkerExited) -> str:
    """The last line of the log of a process that ended by itself; "" if it was killed."""
    lines = [line.strip() for line in event.last_words.splitlines() if line.strip()]
    return f" Its log ends: {lines[-1][:MOST_SHOWN_CHARS]}" if lines and event.exit_code >= 0 else ""
