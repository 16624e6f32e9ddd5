"""Commands to fingerprints: eight bytes for all commands that one event gave.

Invariants: equal commands give equal fingerprints in every process and on every machine; a change of any
value, its type, or the order of commands or of a mapping's keys changes them; no commands have the
fingerprint NOTHING. A float counts with all of its 64 bits.
Source: measured on one core: 1.6 to 2.8 us a command.
"""

from collections.abc import Sequence
from dataclasses import fields
from hashlib import blake2b

import msgpack

from controller.core import commands
from controller.core.commands import Command, Send
from protocol.wire.codec import to_fields

SIZE_BYTES = 8
NOTHING = bytes(SIZE_BYTES)
SEND_TAG = 1
_TAGS: dict[type, int] = {
    commands.Spawn: 2,
    commands.ReadPrompts: 3,
    commands.DropPayload: 4,
    commands.Forget: 5,
    commands.ReportStep: 6,
    commands.Warn: 7,
    commands.Progress: 8,
    commands.Finish: 9,
    commands.ReadHeldOut: 10,
    commands.ReportEvaluation: 11,
}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGS}
_pack = msgpack.Packer(use_bin_type=True).pack


def fingerprint(wanted: Sequence[Command]) -> bytes:
    """SIZE_BYTES bytes that stand for these commands, in this order."""
    if not wanted:
        return NOTHING
    return blake2b(_pack([_values(command) for command in wanted]), digest_size=SIZE_BYTES).digest()


def _values(command: Command) -> tuple[object, ...]:
    if isinstance(command, Send):
        return (SEND_TAG, command.peer, command.message.tag, to_fields(command.message))
    kind = type(command)
    return (_TAGS[kind], *(getattr(command, name) for name in _FIELDS[kind]))
