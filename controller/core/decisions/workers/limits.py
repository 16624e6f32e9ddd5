"""Time limits of all waits for workers, on the core's own clock.

Invariants: this module watches messages in both directions and sends none; the time of a request counts only
from the moment when the worker can work on it, and only while the controller itself runs; no step walks all
trajectories: those of one instance are checked at most once per limit; an overdue worker is named once.

| request | answered by | limit |
|---|---|---|
| Pull | Pulled, PullFailed | pull |
| Route, Keep | a token | token |
| Interrupt | the attempt's end | answer |
| Serve, Drain, Encode | Serving, leaving, PromptsEncoded or ExamplesEncoded | answer |
| Score | GroupScored, ScoreFailed | score |
| Train, TrainAhead, SaveCheckpoint | TrainStepFinished, TrainedAhead, CheckpointSaved | step |
| Release | Released | step |
| (a step is done; a trainer is ready) | PolicyPublished | step |
| Welcome, to one from outside | Ready | ready |
"""

from collections.abc import Sequence
from typing import NamedTuple

from controller.config.reward_rules import longest_group_s
from controller.core.commands import Command, Forget, Send
from controller.core.state.asks import Alarms, Duty, Line, Owed
from controller.core.state.groups import Trajectory
from controller.core.state.registry import Instance, TextWorker, Worker
from controller.core.state.run_state import RunState
from protocol import messages
from protocol.ids import PeerId
from protocol.messages import Message, Role

CALL_START_S = 300.0  # a process of the reward function may take so long to start again, before the next call
MAX_FAILED = 64  # consecutive failed generations of one instance; then it is closed
ORDERS = "orders"
ANSWERS = {messages.Ready: ("ready",), messages.Serving: ("serve",), messages.Released: ("release",)}
NO_ANSWERS = (messages.Beat, messages.InstanceStatus, messages.MachineUse, messages.Ask)


class Silent(NamedTuple):
    """Trajectories of an instance that got no token within `limits.token_s`."""

    instance: Instance
    members: list[Trajectory]


class Overdue(NamedTuple):
    """A worker that exceeded a limit, and is to be closed."""

    worker: Worker
    reason: str


class Limits:
    """Tracks what each worker owes, and since when."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._duties: dict[PeerId, Duty] = {}
        self._alarms = Alarms()
        self._absent: dict[Role, float] = {}  # roles without a ready worker, and since when
        self._ending_since: float | None = None

    # -- clocks -----------------------------------------------------------------------------------------

    def next(self) -> float | None:
        """Next moment at which a limit may be exceeded, in seconds since the run began; or None."""
        found = self._alarms.next()
        if self._absent:  # rare, and this is asked several times per event
            moments = [found, self._absent_until(), self._end_at()]
            found = min((moment for moment in moments if moment is not None), default=None)
        return None if found is None else found + self.state.asleep_s

    def _is_past(self, moment: float) -> bool:
        """Whether a moment has passed; computed as in `next`, so that a tick at that moment finds it past."""
        return moment + self.state.asleep_s <= self.state.now

    def limit_s(self, kind: str) -> float:
        """Seconds that this kind of wait may take."""
        config = self.state.config
        if kind == "score":  # the first in line waits for the group in progress, and then for its own calls
            return 2 * (longest_group_s(config) + CALL_START_S) + config.limits.answer_s
        return getattr(config.limits, f"{kind}_s")

    # -- messages in both directions --------------------------------------------------------------------

    def see(self, commands: Sequence[Command]) -> None:
        """Note the requests among these commands, and the peers that are gone."""
        for command in commands:
            if isinstance(command, Send):
                self._said(command.peer, command.message)
            elif isinstance(command, Forget):
                self._duties.pop(command.peer, None)
                self.see_roles()

    def restart(self) -> None:
        """The controller was restarted: forget what earlier workers owed."""
        self._duties.clear()
        self._alarms = Alarms()
        self._absent.clear()
        self._ending_since = None
        self.see_roles()

    def look_again(self) -> None:
        """A limit was changed: the waits in progress are held against it now."""
        self._alarms.look_at_all(self._duties.values(), self.state.awake_s)

    def see_roles(self) -> None:
        """Note which roles have no ready worker, after one came or went."""
        registry, is_supervised = self.state.registry, self.state.config.trainer.is_supervised
        there: dict[Role, bool] = {
            "trainer": registry.trainer() is not None,
            "reward": next(registry.text_workers(), None) is not None,
            "rollout": registry.ready_instances > 0 or is_supervised,
            "agent": not self.state.config.agent.is_on or next(registry.agents(), None) is not None,
        }
        for role, is_there in there.items():
            if is_there:
                self._absent.pop(role, None)
            else:
                self._absent.setdefault(role, self.state.awake_s)

    def _said(self, peer: PeerId, message: Message) -> None:
        worker = self.state.registry.workers.get(peer)
        if worker is None or isinstance(message, messages.Turn):  # a Turn needs no answer
            return
        if type(message) is messages.Route:  # by far the most frequent message
            self._watch(worker, [(message.group, message.member)], "token")
            return
        match message:
            case messages.Keep(attempts):
                self._watch(worker, [attempt[:2] for attempt in attempts], "token")
            case messages.Interrupt(attempts):
                self._watch(worker, [attempt[:2] for attempt in attempts], "answer")
            case messages.Pull(version):
                self._ask(worker, ORDERS, ("pull", version), Owed(f"pull version {version}", "pull"))
            case messages.Serve():
                self._ask(worker, ORDERS, ("serve",), Owed("say where it hands on weights", "answer"))
            case messages.Drain():
                self._ask(worker, ORDERS, ("drain",), Owed("hand back what it has and leave", "answer"))
            case messages.Release():
                self._ask(worker, ORDERS, ("release",), Owed("leave the device to the other side", "step"))
            case messages.Encode(groups):
                self._ask(worker, "encoding", groups, Owed(f"encode prompt {groups[0]}", "answer"))
            case messages.Score(group, attempt):
                self._ask(worker, "scoring", (group, attempt), Owed(f"score group {group}", "score"))
            case messages.Train(version):
                self._ask(worker, ORDERS, ("train", version), Owed(f"train version {version + 1}", "step"))
            case messages.TrainAhead(version):
                ask = Owed(f"train groups of version {version + 1} ahead", "step")
                self._ask(worker, ORDERS, ("ahead", version), ask)
            case messages.SaveCheckpoint(version):
                self._ask(worker, "saving", (version,), Owed(f"save version {version}", "step"))
            case messages.Welcome() if worker.name not in self.state.registry.local:
                self._ask(worker, ORDERS, ("ready",), Owed("load what its role needs", "ready"))
            case _:
                pass  # the message needs no answer

    def heard(self, worker: Worker, message: Message) -> None:
        """Note an answer, after the core has handled it."""
        if isinstance(message, NO_ANSWERS):
            return
        duty = self._duties.get(worker.peer)
        if isinstance(message, messages.Ready):
            self.see_roles()
            if worker.role == "trainer":  # a trainer publishes the version it holds first
                self.await_version(worker, message.policy_version)
        if duty is None:
            return
        match message:
            case messages.Generated():
                if duty.is_silent and any(message.counts):
                    duty.is_silent = False
                if duty.failures and not {"stop", "length"}.isdisjoint(message.endings):
                    duty.failures = 0
            case messages.GenerationFailed():
                duty.failures += 1
                if duty.failures >= MAX_FAILED:
                    self._alarms.set(duty, self.state.awake_s)
            case messages.GroupScored(group, attempt) | messages.ScoreFailed(group, attempt):
                self._answer(duty, "scoring", (group, attempt))
            case messages.PromptsEncoded() | messages.ExamplesEncoded():
                assert isinstance(worker, TextWorker)
                for groups in list(duty.line("encoding").asks):
                    if worker.encoding.isdisjoint(groups):
                        self._answer(duty, "encoding", groups)
            case messages.TrainStepFinished(version):
                self._answer(duty, ORDERS, ("train", version - 1))
                self.await_version(worker, version)
            case _:
                self._answer_to(duty, message)

    def _answer_to(self, duty: Duty, message: Message) -> None:
        match message:
            case messages.Ready() | messages.Serving() | messages.Released():
                self._answer(duty, ORDERS, ANSWERS[type(message)])
            case messages.Pulled(version) | messages.PullFailed(version):
                self._answer(duty, ORDERS, ("pull", version))
            case messages.TrainedAhead(version):
                self._answer(duty, ORDERS, ("ahead", version))
            case messages.PolicyPublished(version):
                self._answer(duty, "publishing", (version,))
            case messages.CheckpointSaved(version):
                self._answer(duty, "saving", (version,))
            case _:
                pass  # nothing waits for it

    def await_version(self, worker: Worker, version: int) -> None:
        """Expect a version to be published, unless it or a newer one is visible, or the run is supervised."""
        is_read = not self.state.config.trainer.is_supervised
        if is_read and not self.state.versions.has_reached(version):
            self._ask(worker, "publishing", (version,), Owed(f"publish version {version}", "step"))

    def _ask(self, worker: Worker, line: str, key: tuple[object, ...], ask: Owed) -> None:
        duty, now = self._duty(worker), self.state.awake_s
        found = duty.line(line)
        found.add(key, ask, now)
        if found.first is ask:
            self._alarms.set(duty, now + self.limit_s(ask.limit))

    def _answer(self, duty: Duty, line: str, key: tuple[object, ...]) -> None:
        found = duty.line(line)
        found.answer(key, self.state.awake_s)
        if found.first is not None:
            self._alarms.set(duty, found.since + self.limit_s(found.first.limit))
        elif line == ORDERS:
            duty.free_since = self.state.awake_s

    def _watch(self, worker: Worker, ids: Sequence[tuple[int, ...]], kind: str) -> None:
        """Expect a token of these trajectories, or their return."""
        duty, now = self._duty(worker), self.state.awake_s
        for group, number in ids:
            if (found := self.state.groups.get(group)) is not None:
                member = found.members[number]
                if not (member.is_called_back and kind == "answer"):
                    member.since, member.is_called_back = now, kind == "answer"
        at = now + self.limit_s(kind)
        if duty.look_at is None or at < duty.look_at:
            duty.look_at = at
            self._alarms.set(duty, at)

    def _duty(self, worker: Worker) -> Duty:
        return self._duties.get(worker.peer) or self._duties.setdefault(worker.peer, Duty(worker.peer))

    # -- what is overdue --------------------------------------------------------------------------------

    def overdue(self) -> list[Overdue | Silent]:
        """Workers that exceeded a limit, and trajectories that got no token in time."""
        found: list[Overdue | Silent] = []
        while (duty := self._alarms.due(self._is_past)) is not None:
            worker = self.state.registry.workers.get(duty.peer)
            if worker is not None and self._duties.get(duty.peer) is duty:
                found += self._of(worker, duty)
        return found

    def _of(self, worker: Worker, duty: Duty) -> list[Overdue | Silent]:
        now = self.state.awake_s
        for line in duty.open():
            assert line.first is not None
            if self._is_past(line.since + self.limit_s(line.first.limit)):
                return [Overdue(worker, self._in_words(line, now))]
        if duty.failures >= MAX_FAILED:
            text = f"{duty.failures} generations in a row failed there, and none came to its end."
            return [Overdue(worker, text)]
        found: list[Overdue | Silent] = []
        if isinstance(worker, Instance) and duty.look_at is not None and self._is_past(duty.look_at):
            found = self._look(worker, duty)
        self._set_again(duty)
        return found

    def _set_again(self, duty: Duty) -> None:
        ends = [line.since + self.limit_s(line.first.limit) for line in duty.open() if line.first]
        ends += [duty.look_at] if duty.look_at is not None else []
        if ends:
            self._alarms.set(duty, min(ends))

    def _look(self, instance: Instance, duty: Duty) -> list[Overdue | Silent]:
        """Find trajectories of an instance that are overdue, and set the time of the next look."""
        now, answer_s, token_s = self.state.awake_s, self.limit_s("answer"), self.limit_s("token")
        if duty.line(ORDERS).asks:  # trajectories have to wait for these orders
            duty.look_at = now + min(answer_s, token_s)
            return []
        duty.look_at, silent = None, list[Trajectory]()
        for group, number in instance.running:
            member = self.state.groups[group].members[number]
            until = max(member.since, duty.free_since) + (answer_s if member.is_called_back else token_s)
            if not self._is_past(until):
                duty.look_at = until if duty.look_at is None else min(until, duty.look_at)
            elif member.is_called_back:
                what = f"hand back {member.id}"
                return [Overdue(instance, self._words(what, now - member.since, "answer"))]
            else:
                silent.append(member)
        if not silent:
            return []
        if duty.is_silent:
            what = f"generate {silent[0].id}, and after another one that came to nothing"
            return [Overdue(instance, self._words(what, now - silent[0].since, "token"))]
        duty.is_silent = True
        return [Silent(instance, silent)]

    def _in_words(self, line: Line, now: float) -> str:
        assert line.first is not None
        return self._words(line.first.what, now - line.since, line.first.limit)

    def _words(self, what: str, for_s: float, kind: str) -> str:
        return f"asked {for_s:.0f} s ago to {what}, it has not done so; {self._key(kind)}."

    def _key(self, kind: str) -> str:
        """The limit of this kind of wait, and the key that sets it."""
        if kind == "score":
            allowed = f"two groups by reward.timeout_s, or a reward's own, two starts of {CALL_START_S:g} s"
            return f"{self.limit_s(kind):g} s are allowed, for {allowed}, and limits.answer_s"
        return f"limits.{kind}_s allows {self.limit_s(kind):g} s"

    # -- for people -------------------------------------------------------------------------------------

    def owed(self, worker: Worker) -> str:
        """The oldest unanswered request of a worker, in words; "" if there is none."""
        duty = self._duties.get(worker.peer)
        line = None if duty is None else next(duty.open(), None)
        return "" if line is None or line.first is None else f"asked to {line.first.what}"

    def outlook(self, worker: Worker) -> tuple[float | None, str]:
        """Seconds until the core acts on what the worker owes, and what it owes.

        (None, "") if it owes nothing.
        """
        local = self.state.registry.local.get(worker.name)
        if worker.is_absent and worker.deadline is not None:
            return worker.deadline - self.state.now, "its work moves if it is not back"
        if not worker.ready and local is not None and local.deadline is not None:
            then = "it is given up if it is not ready (controller.attach_timeout_s)"
            return local.deadline - self.state.now, then
        duty = self._duties.get(worker.peer)
        if duty is None:
            return None, ""
        now = self.state.awake_s
        found: list[tuple[float, str]] = []
        for line in duty.open():
            assert line.first is not None
            end = line.since + self.limit_s(line.first.limit)
            found.append((end - now, f"it is closed if it has not done so, {self._key(line.first.limit)}"))
        if isinstance(worker, Instance) and not duty.line(ORDERS).asks:
            found += self._outlook_of_first(worker, duty)
        return min(found, default=(None, ""))

    def _outlook_of_first(self, instance: Instance, duty: Duty) -> list[tuple[float, str]]:
        id = next(iter(instance.running), None)
        if id is None:
            return []
        member = self.state.groups[id.group].members[id.member]
        kind = "answer" if member.is_called_back else "token"
        left_s = max(member.since, duty.free_since) + self.limit_s(kind) - self.state.awake_s
        what = (
            "it is closed if that is not back"
            if member.is_called_back
            else "without a token it goes on elsewhere"
        )
        return [(left_s, f"{what}, {self._key(kind)}")]

    # -- roles ------------------------------------------------------------------------------------------

    def absent(self) -> str:
        """Why the run has to end: a role has had no ready worker for too long; "" if none."""
        until = self._absent_until() if self._absent else None
        if until is None or not self._is_past(until):
            return ""
        role = min(self._absent, key=lambda role: self._absent[role])
        return (
            f"No {role} worker has been ready for {self.limit_s('absent'):g} s, as long as limits.absent_s "
            "allows. The same command goes on with the run."
        )

    def vacancy(self) -> tuple[Role, float, str] | None:
        """A role without a ready worker, until when one is awaited, and the key that sets this limit."""
        if self._absent and (until := self._absent_until()) is not None:
            role = min(self._absent, key=lambda role: self._absent[role])
            return role, until + self.state.asleep_s, "limits.absent_s"
        until = self._end_at()
        return None if until is None else ("trainer", until + self.state.asleep_s, "limits.end_s")

    def _absent_until(self) -> float | None:
        if self.state.ending is not None or not self._absent:
            return None
        return min(self._absent.values()) + self.limit_s("absent")

    def await_end(self) -> bool:
        """Whether to go on waiting for an external trainer that is gone while the run is to end."""
        if self._ending_since is None:
            self._ending_since = self.state.awake_s
        return "trainer" not in self._absent or self._end_at() is not None

    def _end_at(self) -> float | None:
        """Until when that trainer is awaited; None if it is not, or not any more."""
        gone_since = self._absent.get("trainer")
        if self._ending_since is None or gone_since is None or self.state.finished:
            return None
        until = max(self._ending_since, gone_since) + self.limit_s("end")
        return None if self._is_past(until) else until
