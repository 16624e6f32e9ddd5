"""When a decision may wait: what tells only of progress is decided upon with what comes next.

Nearly all events of a large run say that responses have grown, or how busy an instance is. A decision looks
at the whole cluster and finds nothing to do because of them. So if there was a decision less than
POSTPONED_S ago, the core takes such an event in and decides with the next event that is more, or when that
time is over. Of a few instances such events are so rare that a Tick would come for each: there none waits.
Invariant: nothing that was due is late by it, and no decision is later than POSTPONED_S after an event.
"""

from typing import TYPE_CHECKING

from controller.core.events import Event, Received
from protocol.messages import Beat, Generated, InstanceStatus, MachineUse, Message

if TYPE_CHECKING:
    from controller.core.core import Core

POSTPONED_S = 0.1  # a twentieth of the rarest reports, and ten decisions per second
LEAST_INSTANCES = 32  # that are ready: some hundred events per second


class Postponed:
    """Whether, and until when, what was taken in waits for its decision."""

    def __init__(self) -> None:
        self.until: float | None = None
        """When it is decided upon at the latest; None if nothing waits."""
        self._decided_at = float("-inf")

    def decided(self, now: float) -> None:
        """Nothing waits any more."""
        self.until, self._decided_at = None, now

    def may_wait(self, core: "Core", event: Event) -> bool:
        """Whether an event that was just taken in needs no decision of its own; noted if so."""
        state = core.state
        is_soon = state.now < self._decided_at + POSTPONED_S
        if not is_soon or not isinstance(event, Received) or state.registry.ready_instances < LEAST_INSTANCES:
            return False
        if not _is_progress(event.message) or state.is_asking or core.is_cut or state.ending is not None:
            return False
        due = core.next_deadline()  # each time, as a decision does: what is looked up is put in order by it
        if due is not None and due <= state.now:
            return False
        self.until = self._decided_at + POSTPONED_S
        return True


def _is_progress(message: Message) -> bool:
    """Whether responses have grown and none has ended, or a worker says how it does."""
    if type(message) is Generated:
        return not any(message.endings)
    return isinstance(message, InstanceStatus | Beat | MachineUse)
