"""Messages to bytes and back: positional msgpack with a closed schema.

Invariants: no maps, no extension types, no pickles; an unknown tag, a wrong type, a missing or surplus field,
a number out of range or trailing bytes raise RemoteError and nothing else. Frame 1 of a packet is `[tag,
protocol, sequence, ack, fields]`; raw buffers follow and are checked against the message's counts.
"""

from dataclasses import fields
from typing import Any, NamedTuple, get_type_hints

import msgpack
import numpy as np
from pydantic import TypeAdapter, ValidationError

from protocol import messages
from protocol.errors import RemoteError
from protocol.messages import PROTOCOL_VERSION, ExamplesEncoded, Generated, Message, PromptsEncoded

MAX_ARRAY = (
    262_144  # elements of one msgpack array: one megabyte of nils would otherwise become 16 of objects
)
MAX_HEADER_BYTES = 16 << 20
ITEM_BYTES = 4  # tokens are int32, logprobs float32


class Packet(NamedTuple):
    """One message with its place in the session."""

    sequence: int  # of this message among the sender's, from 1; 0 is outside the order (Beat)
    ack: int  # highest sequence received in order from the other side
    message: Message
    frames: tuple[bytes, ...]


def _adapter(kind: type[Message]) -> TypeAdapter[Any]:
    hints = get_type_hints(kind, include_extras=True)
    types = tuple(hints[field.name] for field in fields(kind))  # type: ignore[arg-type]
    return TypeAdapter(tuple[types] if types else tuple[()])  # type: ignore[valid-type]


_KINDS: dict[int, tuple[type[Message], TypeAdapter[Any]]] = {
    kind.tag: (kind, _adapter(kind)) for kind in {*messages.FROM_WORKER, *messages.TO_WORKER}
}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind, _ in _KINDS.values()}  # type: ignore[arg-type]


def to_fields(message: Message) -> tuple[object, ...]:
    """The message's fields in order, ready for msgpack."""
    return tuple(getattr(message, name) for name in _FIELDS[type(message)])


def from_fields(tag: int, values: object) -> Message:
    """The message with this tag, strictly validated. Raises: RemoteError."""
    found = _KINDS.get(tag)
    if found is None:
        raise RemoteError(
            f"Message tag {tag} is unknown; expected one of {sorted(_KINDS)}. "
            "Install the same release on both sides."
        )
    kind, adapter = found
    try:
        return kind(*adapter.validate_python(values, strict=True))
    except ValidationError as error:
        first = error.errors()[0]
        place = (
            _FIELDS[kind][first["loc"][0]]
            if first["loc"] and isinstance(first["loc"][0], int) and first["loc"][0] < len(_FIELDS[kind])
            else ""
        )
        raise RemoteError(
            f"{kind.__name__} is malformed at {place or 'its length'}: {first['msg']}."
        ) from None


def pack(value: object) -> bytes:
    """msgpack of plain values; tuples become arrays."""
    return msgpack.packb(value, use_bin_type=True)


def unpack(data: bytes) -> Any:
    """Plain values out of msgpack, arrays as tuples. Raises: RemoteError."""
    try:
        return msgpack.unpackb(
            data,
            use_list=False,
            raw=False,
            max_array_len=MAX_ARRAY,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=2 << 20,
        )
    except (
        Exception
    ) as error:  # msgpack raises ValueError, UnicodeDecodeError, RecursionError and classes of its own
        raise RemoteError(
            f"The header is not the msgpack that was expected: {type(error).__name__}: {error}."
        ) from None


def encode(packet: Packet) -> list[bytes]:
    """The frames of a packet: header first, then the raw buffers."""
    message = packet.message
    header = pack((message.tag, PROTOCOL_VERSION, packet.sequence, packet.ack, to_fields(message)))
    return [header, *packet.frames]


def decode(frames: list[bytes], *, vocabulary: int | None = None) -> Packet:
    """The packet in these frames, everything checked. `vocabulary`: tokens that the model knows; None: any
    number. Raises: RemoteError."""
    if not frames or len(frames[0]) > MAX_HEADER_BYTES:
        raise RemoteError(f"A packet needs a header of at most {MAX_HEADER_BYTES} bytes.")
    header = unpack(frames[0])
    if not (
        isinstance(header, tuple) and len(header) == 5 and all(type(n) is int and n >= 0 for n in header[:4])
    ):
        raise RemoteError("The header is not [tag, protocol, sequence, ack, fields].")
    tag, protocol, sequence, ack, values = header
    if protocol != PROTOCOL_VERSION:
        raise RemoteError(
            f"The peer speaks protocol {protocol}, this side speaks {PROTOCOL_VERSION}. "
            "Install the same release on both sides."
        )
    message = from_fields(tag, values)
    payload = tuple(frames[1:])
    check_frames(message, payload, vocabulary=vocabulary)
    return Packet(sequence, ack, message, payload)


def check_frames(message: Message, frames: tuple[bytes, ...], *, vocabulary: int | None = None) -> None:
    """Refuse buffers that contradict the message, tokens that the model has not, and logprobs that no token
    can have. Raises: RemoteError."""
    name = type(message).__name__
    if isinstance(message, Generated):
        size = ITEM_BYTES * sum(delta.count for delta in message.deltas)
        expected: list[int] | None = [size, size]
    elif isinstance(message, PromptsEncoded):
        expected = [ITEM_BYTES * count for _, count in message.encoded]
    elif isinstance(message, ExamplesEncoded):
        expected = [ITEM_BYTES * (prompt + response) for _, prompt, response in message.encoded]
    elif type(message) in messages.FROM_WORKER:
        expected = []
    else:
        expected = None if message.outgoing_payload() else []
        if expected is None and len(frames) != len(message.outgoing_payload()):
            raise RemoteError(
                f"{name} came with {len(frames)} frames; expected {len(message.outgoing_payload())}."
            )
    if expected is not None and [len(frame) for frame in frames] != expected:
        raise RemoteError(
            f"{name} came with frames of {[len(f) for f in frames]} bytes; its counts say {expected}."
        )
    if isinstance(message, Generated):
        _check_tokens(name, frames[:1], vocabulary)
        logprobs = np.frombuffer(frames[1], dtype="<f4")
        if not bool(np.isfinite(logprobs).all()) or bool((logprobs > 1e-3).any()):
            raise RemoteError(
                "Generated carries logprobs that are not finite numbers <= 0; the engine is broken."
            )
    elif isinstance(message, PromptsEncoded | ExamplesEncoded):
        _check_tokens(name, frames, vocabulary)


def _check_tokens(name: str, frames: tuple[bytes, ...], vocabulary: int | None) -> None:
    for frame in frames:
        tokens = np.frombuffer(frame, dtype="<i4")
        if not len(tokens):
            continue
        for found in (int(tokens.min()), int(tokens.max())):
            if found < 0 or (vocabulary is not None and found >= vocabulary):
                limit = f"the model has {vocabulary} tokens" if vocabulary is not None else "none is negative"
                raise RemoteError(f"{name} carries the token id {found}; {limit}.")
