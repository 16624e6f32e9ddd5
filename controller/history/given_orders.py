"""What operators asked of a run: each order with its moment, who gave it and why.

Invariant: the journal alone says so; what became of an order are the commands of its event.
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
"""Bytes that the record of an order has, and few others."""


class Order(NamedTuple):
    """One word of an operator."""

    number: int  # of its event
    now_s: float
    action: str
    argument: str
    who: str  # "" where the message does not say
    why: str


def orders(recording: Recording, after: int) -> list[Order]:
    """Those behind event `after`, in order. Raises: RunError."""
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
