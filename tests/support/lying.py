"""Workers that tell one lie, and the makers of lies.

Invariants: a lie contradicts what the worker was told, or what any worker can be; it is told once, in the
place of an honest answer or behind it; after it the liar behaves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from protocol import messages
from protocol.messages import Attach, Delta, Generated, Message, Role
from tests.support.scripted import Frames, Said, Scripted, ints

FAR = 1 << 52
EVALUATION = 1 << 40  # where held-out groups begin
Tell = Callable[[Scripted, Message | None, Said], Said | None]
"""What the liar says in the place of its honest words; None: it waits for a better moment."""


@dataclass(frozen=True, slots=True)
class Lie:
    """One of them."""

    name: str
    role: Role
    on: type[Message] | str  # the order that it answers so; "begin" or "work"
    tell: Tell


class Liar(Scripted):
    """A worker that tells one lie."""

    def __init__(self, honest: Scripted, lie: Lie) -> None:
        super().__init__(honest.name)
        self.role, self.honest, self.lie = honest.role, honest, lie
        self.has_lied = False

    def begin(self) -> Said:
        """As it should, or the lie."""
        return self._say("begin", None, self.honest.begin())

    def answer(self, message: Message, frames: Frames) -> Said:
        """As it should, or the lie."""
        return self._say(type(message), message, self.honest.answer(message, frames))

    def work(self) -> Said:
        """As it should, or the lie."""
        return self._say("work", None, self.honest.work())

    def _say(self, what: type[Message] | str, order: Message | None, said: Said) -> Said:
        told = self.lie.tell(self.honest, order, said) if what == self.lie.on and not self.has_lied else None
        self.has_lied = self.has_lied or told is not None
        return said if told is None else told


def behind(*more: Message) -> Tell:
    """Honest words, then these."""
    return lambda worker, order, said: [*said, *((message, ()) for message in more)] if said else None


def instead(make: Callable[[Message], Message]) -> Tell:
    """The first honest word of its kind, made into another; its frames stay."""

    def tell(worker: Scripted, order: Message | None, said: Said) -> Said | None:
        return [(make(said[0][0]), said[0][1]), *said[1:]] if said else None

    return tell


def change(**fields: object) -> Tell:
    """The first honest word with other fields."""
    return instead(lambda message: replace(message, **fields))  # type: ignore[type-var]


def twice(worker: Scripted, order: Message | None, said: Said) -> Said | None:
    """The first honest word, said again."""
    return [said[0], *said] if said else None


def generated(*deltas: Delta, token: int = 1, logprob: float = -0.5) -> tuple[Message, Frames]:
    """A report with frames of the right size."""
    count = sum(delta.count for delta in deltas)
    return Generated.of(deltas), (ints(*[token] * count), np.full(count, logprob, dtype="<f4").tobytes())


def status(**fields: object) -> messages.InstanceStatus:
    one = messages.InstanceStatus(1, 0, 1, 0, 10, 5, 5, 0.1, 3, 0.1, 5, 0, ())
    return replace(one, **fields)  # type: ignore[arg-type]


READY = messages.Ready(0, 8, 100_000)
FINISHED = messages.TrainStepFinished(1, 0.1, ())
PUBLISHED = messages.PolicyPublished(1, "/v1", "d1", 1, 0.1)
SCORED = messages.GroupScored(0, 1, (0.0, 1.0))
DRAIN = messages.DrainWorker("other")
AGAIN = Attach("rollout", "again", 1, "here")
