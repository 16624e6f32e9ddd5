"""One worker process and its link to the controller.

Invariants: on a link messages keep their order; a process that was killed does nothing more, though what it
had said may still arrive; a frozen one does later what it would have done, in the same order; a message to
or from another life of the controller, or of the process, is not delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protocol import messages
from protocol.messages import Attach, Beat, Message, Role

if TYPE_CHECKING:
    from tests.simulation.oracle.host import Host

LINK_S = 0.002


class Peer:
    """What all roles have in common."""

    role: Role

    def __init__(self, host: Host, name: str, *, where: str, is_local: bool) -> None:
        self.host, self.clock, self.rng = host, host.clock, host.rng
        self.name, self.where, self.is_local = name, where, is_local
        self.id = ""
        self.is_alive = True
        self.is_ready = False
        self.mute = host.mute_of(self.role)
        """Kinds of messages that it takes and never answers."""
        self.frozen_until = 0.0
        self.in_flight: deque[Message] = deque()  # said and not arrived
        self._inbox: deque[Message] = deque()
        self._is_working = False
        self._heard_s = self._said_s = 0.0

    def attach(self) -> None:
        """Begin a link of this process, as a new peer."""
        self.forget_link()
        self.id = self.host.enter(self)
        self.say(Attach(self.role, self.name, len(self.host.peers), self.where))
        self.later(self._beat_s, self._beat, self.id)

    def forget_link(self) -> None:
        """What was on its way never comes."""
        self.id, self.is_ready = "", False
        self.in_flight.clear()
        self._inbox.clear()

    def later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Do this then, unless the process is dead; when it is frozen, as soon as it is not."""
        self.clock.after(delay_s, self._do, call, arguments)

    def say(self, message: Message) -> None:
        """Send."""
        self._said_s = max(self._said_s, self.clock.now + LINK_S + self.host.late_s())
        self.in_flight.append(message)
        self.clock.at(self._said_s, self._arrive, self.id, message)

    def send(self, message: Message) -> None:
        """The controller sends this."""
        self._heard_s = max(self._heard_s, self.clock.now + LINK_S + self.host.late_s())
        self.clock.at(self._heard_s, self._do, self._take, (self.id, message))

    def kill(self, *, says_more: bool = False) -> None:
        """It does nothing more; `says_more`: what it has said arrives all the same."""
        self.is_alive = False
        if not says_more:
            self.in_flight.clear()
            self.id = ""

    def ready(self) -> messages.Ready:
        """What it says when it has loaded."""
        return messages.Ready(0, 0, 0)

    def handle(self, message: Message) -> float:
        """Do what a message asks for; returns the seconds for which the next has to wait."""
        raise NotImplementedError

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _beat_s(self) -> float:
        return self.host.world.config.controller.lease_s / 4

    def _beat(self, id: str) -> None:
        if id == self.id:
            if self.clock.now >= self._said_s + 0.9 * self._beat_s:
                self.say(Beat())
            self.later(self._beat_s, self._beat, id)

    def _do(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if self.is_alive and self.clock.now < self.frozen_until:
            self.clock.at(self.frozen_until, self._do, call, arguments)
        elif self.is_alive:
            call(*arguments)

    def _arrive(self, id: str, message: Message) -> None:
        if id == self.id and self.in_flight:
            self.in_flight.popleft()
            self.host.arrived(id, message)

    def _take(self, id: str, message: Message) -> None:
        if id == self.id:
            self._inbox.append(message)
            self._work(id)

    def _work(self, id: str) -> None:
        while self._inbox and not self._is_working and id == self.id and self.is_alive:
            message = self._inbox.popleft()
            if isinstance(message, messages.Close | messages.Reattach):
                self.host.closed(self, is_fault=getattr(message, "is_fault", False))
            elif isinstance(message, messages.Welcome):
                self.later(self.rng.uniform(0.05, 1.0), self._load, id)
            elif type(message).__name__ not in self.mute:
                busy_s = self.handle(message)
                if busy_s > 0:
                    self._is_working = True
                    self.later(busy_s, self._go_on, id)

    def _go_on(self, id: str) -> None:
        self._is_working = False
        self._work(self.id)

    def _load(self, id: str) -> None:
        if id == self.id and "Ready" not in self.mute:
            self.is_ready = True
            self.say(self.ready())
