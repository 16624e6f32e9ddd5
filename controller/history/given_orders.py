"""Reads operators' orders to a run from its journal: each with its time, its operator and the reason.

Invariant: the journal is the only source; the effects of an order are the commands of its event.
"""

from typing import NamedTuple, get_args

import msgpack

from controller.core.events import Received
from controller.durability.recording import Recording
from protocol.messages import Action, Control, DrainWorker

FOUR_FIELDS, THREE_FIELDS, ONE_FIELD = b"\x94", b"\x93", b"\x91"  # how MessagePack begins those of messages
MARKS = (
    *(bytes((Control.tag,)) + FOUR_FIELDS + msgpack.packb(action) for action in get_args(Action)),
    bytes((DrainWorker.tag,)) + THREE_FIELDS,
    bytes((DrainWorker.tag,)) + ONE_FIELD,  # as older releases have written it
)
"""Bytes that the record of an order contains, and few other records do."""


class Order(NamedTuple):
    """One order of an operator."""

    number: int  # of the order's event
    now_s: float
    action: str
    argument: str
    who: str  # "" where the message does not say
    why: str


def orders(recording: Recording, after: int) -> list[Order]:
    """Orders after the event `after`, in order. Raises: RunError."""
    found: list[Order] = []
    for number, now_s, event, *_ in recording.events_with(*MARKS, after=after):
        if not isinstance(event, Received):
            continue
        match event.message:
            case Control(action, argument, who, why):
                found.append(Order(number, now_s, action, argument, who, why))
            case DrainWorker(name, who, why):
                found.append(Order(number, now_s, "drain", name, who, why))
            case _:  # the same bytes by chance
                pass
    return found
