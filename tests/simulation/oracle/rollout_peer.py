"""A rollout worker with an engine of its own making: responses of hashed lengths, a KV cache that overflows,
pulls that take time, words for a controller that is away.

Invariants: a token is of the version that the engine holds when it is sampled; messages behind a Pull wait
for it; what was said and not heard by a controller that died is kept for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol import messages
from protocol.messages import Delta, Generated, Message
from tests.simulation.oracle.peer import Peer

if TYPE_CHECKING:
    from tests.simulation.oracle.host import Host
    from tests.simulation.oracle.world import Machine

Key = tuple[int, int, int]


@dataclass
class Attempt:
    """One generation in the engine."""

    key: Key
    prompt: int
    before: int  # response tokens of earlier attempts
    target: int  # response tokens at its end
    limit: int  # that it may make
    made: int = 0
    reported: int = 0
    part: float = 0.0  # of the next token

    @property
    def resident(self) -> int:
        return self.prompt + self.before + self.made

    @property
    def is_over(self) -> bool:
        return self.made >= self.limit or self.before + self.made >= max(self.target, self.before + 1)


@dataclass
class Hands:
    """What a worker that lost its controller has to tell."""

    formers: list[str] = field(default_factory=list)
    version: int = -1
    words: list[Message] = field(default_factory=list)


class RolloutPeer(Peer):
    """One engine."""

    role = "rollout"

    def __init__(self, host: Host, machine: Machine, hands: Hands | None = None) -> None:
        super().__init__(host, machine.name, where=machine.host, is_local=machine.is_local)
        self.machine, self.hands = machine, hands
        self.version = -1
        self.running: dict[Key, Attempt] = {}
        self.waiting: list[Attempt] = []
        self._sequence = self._preemptions = 0
        self._status_s = 0.0
        self._is_ticking = self._is_known_idle = False
        self._has_failed = False  # the last pull; what was routed behind it is called back

    # -- links ------------------------------------------------------------------------------------------

    def ready(self) -> messages.Ready:
        """A successor of a local worker has told of its forerunner's hands by now."""
        if not self.is_local:
            self._tell_hands()
        return messages.Ready(max(0, self.version), self.machine.capacity, self.machine.kv_tokens)

    def _load(self, id: str) -> None:
        if id == self.id and self.is_local and self.hands is not None:
            self._tell_hands()  # it loads when it is rid of them
        else:
            super()._load(id)

    def _tell_hands(self) -> None:
        if self.hands is None:
            return
        starts = {attempt.key: attempt.reported for attempt in self.attempts}
        for word in reversed(self.hands.words):
            if isinstance(word, Generated):
                starts |= {delta[:3]: delta.start for delta in reversed(word.deltas)}
            elif isinstance(word, messages.GenerationFailed):
                starts.setdefault(_key(word), 0)
        version = self.hands.version if self.is_local else self.version
        attempts = tuple((*key, start) for key, start in starts.items())
        self.say(messages.Holding(tuple(self.hands.formers), max(0, version), attempts))

    def cut(self) -> Hands | None:
        """The controller is gone: keep what it has not heard."""
        said = [m for m in self.in_flight if isinstance(m, Generated | messages.GenerationFailed)]
        hands = self.hands or Hands()
        hands.formers.append(self.id)
        hands.words += said
        hands.version = self.version
        self.hands = hands if self.version >= 0 else None
        if self.hands is None:  # what came behind a pull that failed is of no version of this run
            self._drop([attempt.key for attempt in self.attempts])
        self.forget_link()
        return self.hands

    def last_words(self) -> Hands | None:
        """As `cut`, and everything ends where it stands."""
        if self.cut() is not None:
            self._hand_back([attempt.key for attempt in self.attempts])
        return self.hands

    def _tell(self, message: Message) -> None:
        if self.hands is None:
            self.say(message)
        elif isinstance(message, Generated | messages.GenerationFailed):
            self.hands.words.append(message)

    # -- orders -----------------------------------------------------------------------------------------

    @property
    def attempts(self) -> Iterable[Attempt]:
        """All that it has in hand."""
        return [*self.running.values(), *self.waiting]

    def handle(self, message: Message) -> float:
        """A Pull keeps what is behind it waiting."""
        match message:
            case messages.Route():
                self._add(message)
            case messages.Interrupt(attempts):
                self._hand_back(attempts)
            case messages.Abort(attempts):
                self._drop(attempts)
            case messages.Keep():
                self._release(message)
            case messages.Pull():
                busy_s = self.host.world.pull_s * self.rng.uniform(0.5, 1.5)
                self.later(busy_s, self._pulled, self.id, message, busy_s)
                return busy_s + 1e-6
            case messages.Serve():
                self.say(messages.Serving(f"tcp://{self.where}:{len(self.name)}"))
            case messages.Retire():
                pass
            case messages.Drain():
                self._hand_back([attempt.key for attempt in self.attempts])
                self.say(messages.Detach("drained"))
                self.later(0.1, self.host.left, self)
            case _:
                raise AssertionError(f"a rollout worker was sent {message}")
        return 0.0

    def _add(self, route: messages.Route) -> None:
        key = (route.group, route.member, route.attempt)
        before = sum(segment.count for segment in route.segments)
        assert before + route.max_new_tokens == self.host.world.config.rollout.max_response_tokens
        if "Pull" in self.mute:
            return
        oldest = route.segments[-1].policy_version if route.segments else 0
        assert self.version >= oldest or self._has_failed, f"{route} runs under {self.version}"
        target, prompt = self.host.target(route.group, route.member), self.host.prompt_tokens(route.group)
        attempt = Attempt(key, prompt, before, target, route.max_new_tokens)
        self._is_known_idle = False
        if attempt.resident > self.machine.kv_tokens:
            self._tell(messages.GenerationFailed(*key, "too long for this machine"))
            return
        self.waiting.append(attempt)
        self._start_ticking()

    def _pulled(self, id: str, pull: messages.Pull, busy_s: float) -> None:
        if id != self.id:
            return
        self._report(self.attempts)
        if not self.host.can_pull(pull) or self.host.fails("pull"):
            self._has_failed = True
            self.say(messages.PullFailed(pull.policy_version, "gone"))
            return
        self._has_failed = False
        self.version = pull.policy_version
        self.say(messages.Pulled(self.version, pull.digest, busy_s))

    def _hand_back(self, keys: Iterable[Key]) -> None:
        wanted = {tuple(key) for key in keys}
        back = [attempt for attempt in self.attempts if attempt.key in wanted]
        self._drop(wanted)
        self._report(back, "interrupt")

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.running.pop(tuple(key), None)
        gone = {tuple(key) for key in keys}
        self.waiting = [attempt for attempt in self.waiting if attempt.key not in gone]

    def _release(self, keep: messages.Keep) -> None:
        """Tell what this controller wants to hear of what the last one has not, and drop the rest."""
        assert self.hands is not None, "nobody said Holding"
        wanted = {attempt[:3]: attempt[3] for attempt in keep.attempts}
        words, self.hands = self.hands.words, None
        self._drop([attempt.key for attempt in self.attempts if attempt.key not in wanted])
        for word in words:
            if isinstance(word, Generated):
                kept = tuple(d for d in word.deltas if d.start >= wanted.get(d[:3], d.start + 1))
                if kept:
                    self.say(Generated.of(kept))
            elif isinstance(word, messages.GenerationFailed) and _key(word) in wanted:
                self.say(word)
        if self.is_local:
            self.later(0.2, self._load, self.id)

    # -- the engine -------------------------------------------------------------------------------------

    def _start_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self.later(self.host.world.config.rollout.progress_s, self._tick)

    def _tick(self) -> None:
        tick_s = self.host.world.config.rollout.progress_s
        self._admit()
        for attempt in list(self.running.values()):
            if self.host.fails("generate", 0.2):
                self._report([attempt])
                del self.running[attempt.key]
                self._tell(messages.GenerationFailed(*attempt.key, "the engine gave up"))
            else:
                self._sample(attempt, tick_s)
        self._preempt()
        over = [attempt for attempt in self.running.values() if attempt.is_over]
        for attempt in over:
            del self.running[attempt.key]
        self._report(self.running.values(), ended=over)
        self._is_ticking = False
        if self.running or self.waiting:
            self._start_ticking()
        self._status()

    def _sample(self, attempt: Attempt, tick_s: float) -> None:
        attempt.part += self.machine.tokens_per_s * tick_s
        left = min(attempt.limit - attempt.made, max(1, attempt.target - attempt.before - attempt.made))
        count = min(int(attempt.part), left)
        attempt.part -= count
        attempt.made += count
        self.host.books.sampled(attempt.key, self.version, count)

    def _admit(self) -> None:
        resident = sum(attempt.resident for attempt in self.running.values())
        while self.waiting and len(self.running) < self.machine.capacity:
            first = self.waiting[0]
            if self.running and resident + first.resident > self.machine.kv_tokens:
                return
            resident += first.resident
            self.running[first.key] = self.waiting.pop(0)

    def _preempt(self) -> None:
        """Push back the last, as long as the KV cache overflows; one that is alone and too long fails."""
        while sum(a.resident for a in self.running.values() if not a.is_over) > self.machine.kv_tokens:
            key = [key for key, attempt in self.running.items() if not attempt.is_over][-1]
            attempt = self.running.pop(key)
            if self.running:
                self.waiting.insert(0, attempt)
                self._preemptions += 1
            else:
                self._report([attempt])
                self._tell(messages.GenerationFailed(*key, "too long for this machine"))

    def _report(
        self, attempts: Iterable[Attempt], ending: messages.Ending = "", *, ended: Iterable[Attempt] = ()
    ) -> None:
        deltas = [self._delta(a, ending) for a in attempts if ending or a.made > a.reported]
        for attempt in ended:
            is_stop = attempt.before + attempt.made >= attempt.target and attempt.target <= self._longest
            deltas.append(self._delta(attempt, "stop" if is_stop else "length"))
        if deltas:
            self._tell(Generated.of(tuple(deltas)))

    @property
    def _longest(self) -> int:
        return self.host.world.config.rollout.max_response_tokens

    def _delta(self, attempt: Attempt, ending: messages.Ending) -> Delta:
        start, attempt.reported = attempt.reported, attempt.made
        if ending:
            self.host.books.ended(attempt.key, ending)
        return Delta(*attempt.key, start, attempt.made - start, max(0, self.version), ending)

    def _status(self) -> None:
        is_idle = not self.running and not self.waiting
        is_due = self.clock.now >= self._status_s + self.host.world.config.rollout.first_status_s
        if not self.is_ready or self.hands is not None or (self._is_known_idle if is_idle else not is_due):
            return
        self._is_known_idle, self._status_s = is_idle, self.clock.now
        self._sequence += 1
        steps, rows = self._sequence, len(self.running)
        resident = sum(attempt.resident for attempt in self.running.values())
        self.say(messages.InstanceStatus(
            self._sequence, max(0, self.version), rows, len(self.waiting), resident, steps, steps * 4,
            steps * 0.02, steps, 0.001 * steps, steps * 50, self._preemptions,
            tuple(attempt.key for attempt in self.waiting),
        ))  # fmt: skip


def _key(word: messages.GenerationFailed) -> Key:
    return (word.group, word.member, word.attempt)
