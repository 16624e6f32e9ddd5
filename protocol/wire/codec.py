"""Messages to bytes and back: positional msgpack with a closed schema.

Invariants: no maps, no extension types, no pickles; an unknown tag, a wrong type, a missing or surplus field,
a number out of range or trailing bytes raise RemoteError and nothing else. Frame 1 of a packet is `[tag,
protocol, sequence, ack, fields]`; raw buffers follow and are checked against the message's counts.
"""

from dataclasses import fields
from typing import Any, NamedTuple, cast, get_type_hints

import msgpack
import numpy as np
from pydantic import TypeAdapter, ValidationError

from protocol.errors import RemoteError
from protocol.messages import ITEM_BYTES, KINDS, PROTOCOL_VERSION, Message

MAX_ARRAY = (
    262_144  # elements of one msgpack array: one megabyte of nils would otherwise become 16 of objects
)
MAX_HEADER_BYTES = 16 << 20


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
    tag: (kind, _adapter(kind)) for tag, kind in KINDS.items()
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
    return cast("bytes", msgpack.packb(value, use_bin_type=True))  # None is for streams


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
    if outgoing := message.outgoing_payload():
        if len(frames) != len(outgoing):
            raise RemoteError(f"{name} came with {len(frames)} frames; expected {len(outgoing)}.")
        return
    incoming = message.incoming_frames()
    expected = [ITEM_BYTES * size for _, size in incoming]
    if [len(frame) for frame in frames] != expected:
        raise RemoteError(
            f"{name} came with frames of {[len(f) for f in frames]} bytes; its counts say {expected}."
        )
    for (kind, _), frame in zip(incoming, frames, strict=True):
        if kind == "tokens":
            _check_tokens(name, frame, vocabulary)
        else:
            _check_logprobs(name, frame)


def _check_tokens(name: str, frame: bytes, vocabulary: int | None) -> None:
    tokens = np.frombuffer(frame, dtype="<i4")
    if not len(tokens):
        return
    for found in (int(tokens.min()), int(tokens.max())):
        if found < 0 or (vocabulary is not None and found >= vocabulary):
            limit = f"the model has {vocabulary} tokens" if vocabulary is not None else "none is negative"
            raise RemoteError(f"{name} carries the token id {found}; {limit}.")


def _check_logprobs(name: str, frame: bytes) -> None:
    logprobs = np.frombuffer(frame, dtype="<f4")
    if not bool(np.isfinite(logprobs).all()) or bool((logprobs > 1e-3).any()):
        raise RemoteError(f"{name} carries logprobs that are not finite numbers <= 0; the engine is broken.")
