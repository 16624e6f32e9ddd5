"""Postponed decisions: an event that reports only progress is decided upon with a later one.

Nearly all events of a large run say that responses have grown, or how busy an instance is. A decision looks
at the whole cluster and finds nothing to do because of them. So within POSTPONED_S of the last decision the
core only absorbs such an event, and decides with the next event of another kind, or when that time is over.
With few instances such events are so rare that a Tick would come for each, so there none is postponed.
Invariant: no deadline is missed by it, and no decision comes later than POSTPONED_S after an event.
"""

from typing import TYPE_CHECKING

from controller.core.events import Event, Received
from protocol.messages import Beat, Generated, InstanceStatus, MachineUse, Message

if TYPE_CHECKING:
    from controller.core.core import Core

POSTPONED_S = 0.1  # a twentieth of the rarest reports, and ten decisions per second
LEAST_INSTANCES = 32  # ready ones; they send some hundred events per second


class Postponed:
    """Whether, and until when, absorbed events wait for their decision."""

    def __init__(self) -> None:
        self.until: float | None = None
        """Latest time of that decision; None if no event waits."""
        self._decided_at = float("-inf")

    def decided(self, now: float) -> None:
        """A decision was made: no event waits any more."""
        self.until, self._decided_at = None, now

    def may_wait(self, core: "Core", event: Event) -> bool:
        """Whether the event just absorbed may wait for a later decision; notes the deadline if so."""
        state = core.state
        is_soon = state.now < self._decided_at + POSTPONED_S
        if not is_soon or not isinstance(event, Received) or state.registry.ready_instances < LEAST_INSTANCES:
            return False
        if not _is_progress(event.message) or state.is_asking or core.is_cut or state.ending is not None:
            return False
        due = core.next_deadline()  # asked each time, as a decision does: asking tidies the heaps
        if due is not None and due <= state.now:
            return False
        self.until = self._decided_at + POSTPONED_S
        return True


def _is_progress(message: Message) -> bool:
    """Whether a message only says that responses have grown, or how its worker is doing."""
    if type(message) is Generated:
        return not any(message.endings)
    return isinstance(message, InstanceStatus | Beat | MachineUse)
