"""A simulated rollout worker: the real protocol around a simulated engine.

Invariants: messages are sent at the time of the call that returned them; a delta holds tokens of one policy
version; progress and load are reported while the engine has work, and once more when it runs dry.
"""

from dataclasses import dataclass
from typing import cast

from protocol import messages
from protocol.messages import Delta, Ending, Generated, InstanceStatus, Message, Route, ToAnyRole, ToRollout
from workers.simulated.engine import Request, SimulatedEngine
from workers.simulated.link import taken_by_link
from workers.simulated.workload import Workload

Tag = tuple[int, int, int]  # group, member, attempt


@dataclass(frozen=True, slots=True)
class RolloutTimes:
    """Times of a rollout worker, in seconds, and its periods of reports."""

    attach_s: float = 1.0
    pull_s: float = 3.0
    progress_s: float = 1.0
    status_s: float = 1.0
    early: float = 0.0
    """Share of a period by which its first report comes early, to spread those of many instances."""


class SharedPulls:
    """Bandwidth that concurrent pulls share: beyond a number, each takes proportionally longer.

    A pull in progress is not slowed down by later ones.
    """

    def __init__(self, at_once: int = 0) -> None:
        """`at_once`: pulls at full speed; 0 for any number."""
        self._at_once = at_once
        self._ends: list[float] = []

    def begin(self, now: float, pull_s: float) -> float:
        """Seconds of a pull that begins now, and would take `pull_s` alone."""
        if not self._at_once:
            return pull_s
        self._ends = [end for end in self._ends if end > now]
        seconds = pull_s * max(1.0, (len(self._ends) + 1) / self._at_once)
        self._ends.append(now + seconds)
        return seconds


class SimulatedRollout:
    """Answers commands as a rollout worker does; call `wake` at `next_wake_s` for its other messages."""

    def __init__(
        self,
        engine: SimulatedEngine,
        workload: Workload,
        times: RolloutTimes,
        *,
        pulls: SharedPulls | None = None,
        now: float = 0.0,
    ) -> None:
        """`pulls`: shared by all instances that pull from one place."""
        self.engine, self.workload, self.times = engine, workload, times
        self._pulls, self._pull_s = pulls or SharedPulls(), times.pull_s
        self.policy_version = -1
        self._routes: dict[Tag, tuple[Request, Ending]] = {}
        self._ready_s: float | None = now + times.attach_s
        self._pull: tuple[float, messages.Pull] | None = None
        self._progress_due_s: float | None = None  # None while the engine is dry
        self._status_due_s = 0.0
        self._sequence = 0
        self._has_weights = self._has_left = False
        self._is_leaving = False  # releases the device once the pull in progress is done
        self._progress_s, self._status_s = times.progress_s, times.status_s

    @property
    def has_device(self) -> bool:
        """Whether its weights are on the device, or being pulled."""
        return self._has_weights or self._pull is not None

    def next_wake_s(self) -> float | None:
        """The time at which `wake` must be called if no command comes before."""
        due = self.engine.next_change_s()
        if self._progress_due_s is not None:
            report_s = min(self._progress_due_s, self._status_due_s)
            due = report_s if due is None or report_s < due else due
        for at in (self._ready_s, self._pull[0] if self._pull else None):
            due = at if due is None or (at is not None and at < due) else due
        return due

    def handle(self, now: float, command: Message) -> list[Message]:
        """Handle one command; returns the answers. Call `wake(now)` after the last command of an instant."""
        out = self._advance(now)
        order = cast("ToRollout | ToAnyRole", command)
        match order:
            case Route():
                if not self._has_left or self._pull is not None:  # else the pull before it has failed
                    self._add(now, order)
            case messages.Interrupt(attempts):
                deltas = tuple(self._end(now, tag) for tag in attempts if tag in self._routes)
                out += [Generated.of(deltas)] if deltas else []
            case messages.Abort(attempts):
                for tag in attempts:
                    if self._routes.pop(tag, None) is not None:
                        self.engine.remove(now, tag)
            case messages.Pull():
                out += self._progress()  # the last tokens of the old version
                self._pull_s = self._pulls.begin(now, self.times.pull_s)
                self._pull = (now + self._pull_s, order)
                if self._routes:  # nothing was interrupted, so it goes on with the KV that it has
                    self.engine.pause(now + self._pull_s)
                else:
                    self.engine.clear(now, now + self._pull_s)
            case messages.Release():
                self._is_leaving = True
                out += self._leave(now)
            case messages.Serve():
                out.append(messages.Serving("tcp://simulated:1"))
            case messages.Report(progress_s, status_s):
                self._progress_s = max(progress_s, self.times.progress_s)
                self._status_s = max(status_s, self.times.status_s)
                if self.times.early and self._progress_due_s is not None:
                    self._begin_reports(now)
            case messages.Retire() | messages.Keep():
                pass  # it keeps no versions, and nothing of a controller before
            case _:
                taken_by_link(order)
        return out

    def wake(self, now: float) -> list[Message]:
        """The messages that are due by now."""
        out = self._advance(now)
        if self._ready_s is not None and self._ready_s <= now:
            self._ready_s = None
            out.append(self.ready())
        if self._pull is not None and self._pull[0] <= now:
            _, pull = self._pull
            self._pull, self.policy_version, self._has_weights = None, pull.policy_version, True
            self._has_left = False
            out.append(messages.Pulled(pull.policy_version, pull.digest, self._pull_s))
            out += self._leave(now)
        if self._progress_due_s is not None:
            out += self._reports(now)
        elif self._routes:
            self._begin_reports(now)
        return out

    def _begin_reports(self, now: float) -> None:
        share = 1.0 - self.times.early
        self._progress_due_s = now + share * self._progress_s
        self._status_due_s = now + share * self._status_s

    def ready(self) -> messages.Ready:
        """The message once its engine is there, and again for each controller."""
        return messages.Ready(max(self.policy_version, 0), self.engine.rows, self.engine.kv_blocks * 16)

    def in_hand(self) -> dict[Tag, int]:
        """Running attempts, with the reported tokens of each."""
        return {tag: request.reported for tag, (request, _) in self._routes.items()}

    def set_speed(self, now: float, speed: float) -> list[Message]:
        """Change the speed from now on; returns the messages that were due."""
        out = self._advance(now)
        self.engine.set_speed(now, speed)
        return out

    def _leave(self, now: float) -> list[Message]:
        """Release weights and KV cache if that was ordered, and no pull is in progress."""
        if not self._is_leaving or self._pull is not None:
            return []
        assert not self._routes, "it was told to leave the device before it was called off"
        self._is_leaving, self._has_weights, self._has_left = False, False, True
        self.engine.clear(now, now)
        return [messages.Released(0, 0, 0.0)]

    def _advance(self, now: float) -> list[Message]:
        ended = self.engine.advance(now)
        if not ended:
            return []
        deltas = tuple(self._delta(request, self._routes.pop(request.tag)[1]) for request in ended)
        return [Generated.of(deltas)]

    def _reports(self, now: float) -> list[Message]:
        if not self._routes:
            self._progress_due_s = None
            return [self._status()]
        assert self._progress_due_s is not None
        out: list[Message] = []
        if self._progress_due_s <= now:
            self._progress_due_s = now + self._progress_s
            out = self._progress()
        if self._status_due_s <= now:
            self._status_due_s = now + self._status_s
            out.append(self._status())
        return out

    def _add(self, now: float, route: Route) -> None:
        done = sum(segment.count for segment in route.segments[route.begins :])
        turn = sum(segment.is_given for segment in route.segments)  # 0: of a response that is no agent's
        left = max(1, self.workload.length(route.group, route.member, turn) - done)
        limit = max(1, min(left, route.max_new_tokens))
        is_whole = left == limit and done + left < self.workload.distribution.cap
        tag = (route.group, route.member, route.attempt)
        before = sum(segment.count for segment in route.segments[: route.begins])
        resident = (before or self.workload.prompt_tokens) + done
        request = Request(tag, resident=resident, limit=limit, is_redone=done > 0)
        ending: Ending = "stop" if is_whole else "length"
        self._routes[tag] = (request, ending)
        self.engine.add(now, request)

    def _end(self, now: float, tag: Tag) -> Delta:
        request, _ = self._routes.pop(tag)
        self.engine.remove(now, tag)
        return self._delta(request, "interrupt")

    def _progress(self) -> list[Message]:
        deltas = [self._delta(request, "") for request, _ in self._routes.values()]
        grown = tuple(delta for delta in deltas if delta.count)
        return [Generated.of(grown)] if grown else []

    def _delta(self, request: Request, ending: Ending) -> Delta:
        start, request.reported = request.reported, self.engine.tokens(request)
        version = self._pull[1].policy_version if self._has_left and self._pull else self.policy_version
        return Delta(*request.tag, start, request.reported - start, version, ending)

    def _status(self) -> InstanceStatus:
        engine = self.engine
        self._sequence += 1
        return InstanceStatus(
            sequence=self._sequence,
            policy_version=max(self.policy_version, 0),
            running=engine.running,
            waiting=len(engine.queue),
            resident_tokens=engine.resident_tokens,
            decode_steps=engine.decode_steps,
            decode_tokens=engine.decode_tokens,
            decode_s=engine.decode_s,
            prefill_tokens=engine.prefill_tokens,
            prefill_s=engine.prefill_s,
            decode_context=engine.decode_context,
            preemptions=engine.preemptions,
            queued=tuple(request.tag for request in engine.queue),
            parked_tokens=engine.parked_tokens,
            reused_tokens=engine.reused_tokens,
        )
