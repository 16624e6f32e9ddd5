"""Encodes messages as bytes, and decodes them: positional msgpack with a closed schema.

Invariants: no maps, no extension types, no pickles; an unknown tag, a wrong type, a missing or surplus field,
a number out of range or trailing bytes raise RemoteError and nothing else. Only in a journal, fields at the
end of a message may be missing: an older release did not write them. Frame 1 of a packet is `[tag,
protocol, sequence, ack, fields]`; raw buffers follow and are checked against the message's counts.
"""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import inf
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgpack
import msgspec
import numpy as np

from protocol import kept_sets
from protocol.errors import RemoteError
from protocol.messages import KINDS, MAX_ARRAY, PROTOCOL_VERSION, Generated, Message
from protocol.wire.fields import FieldTypes, MalformedFields, NoFields

MAX_HEADER_BYTES = 16 << 20  # of what a worker sends
MOST_LOGPROB = 1e-3  # float32 arithmetic may round the logprob of a certain token to above 0
_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce  # of many small frames: no method between
_NUMBER = Annotated[int, msgspec.Meta(ge=0)]
_HEADER = msgspec.msgpack.Decoder(tuple[_NUMBER, _NUMBER, _NUMBER, _NUMBER, msgspec.Raw])


class Packet(NamedTuple):
    """One message with its place in the session."""

    sequence: int  # of this message among the sender's, from 1; 0 is outside the order (Beat, Relinked)
    ack: int  # highest sequence received in order from the other side
    message: Message
    frames: tuple[bytes, ...]


@cache
def _field_types(kind: type[Message], count: int | None = None) -> FieldTypes:
    """The types of the first `count` fields of a class, or of all."""
    hints = get_type_hints(kind, include_extras=True)
    return FieldTypes([hints[name] for name in _names(kind)[:count]])


def _names(kind: type[Message]) -> tuple[str, ...]:
    assert is_dataclass(kind), "every message is one"
    return tuple(field.name for field in fields(kind))


_KINDS: dict[int, tuple[type[Message], FieldTypes]] = {
    tag: (kind, _field_types(kind)) for tag, kind in KINDS.items()
}
_FIELDS = {kind: _names(kind) for kind, _ in _KINDS.values()}


def to_fields(message: Message) -> tuple[object, ...]:
    """The message's fields in order, ready for msgpack."""
    return tuple([getattr(message, name) for name in _FIELDS[type(message)]])


def from_fields(tag: int, values: object) -> Message:
    """The message with this tag and these fields, strictly validated. Raises: RemoteError."""
    kind, types = _kind(tag)
    try:
        found = types.convert(values)
    except MalformedFields as error:
        raise _refusal(kind, error) from None
    return _made(kind, found)


def read_fields(tag: int, data: bytes | msgspec.Raw) -> Message:
    """As `from_fields`, for fields that are packed. Raises: RemoteError."""
    kind, types = _kind(tag)
    try:
        found = types.decode(data)
    except MalformedFields as error:
        raise _refusal(kind, error) from None
    return _made(kind, found)


def read_kept_fields(tag: int, data: bytes | msgspec.Raw) -> Message:
    """As `read_fields`, for a message that a journal kept. Raises: RemoteError.

    An older release may have written it: fields at its end that are missing have their defaults.
    """
    kind, types = _kind(tag)
    try:
        found = types.decode(data)
    except MalformedFields as error:
        older = None if error.place is not None or isinstance(error, NoFields) else _older(kind, data)
        if older is None:
            raise _refusal(kind, error) from None
        try:
            found = older.decode(data)
        except MalformedFields as why:
            raise _refusal(kind, why) from None
    return _made(kind, found)


def _older(kind: type[Message], data: bytes | msgspec.Raw) -> FieldTypes | None:
    """The types of the fields that are there, if all others have defaults; None if not."""
    count = len(msgspec.msgpack.decode(data, type=list[msgspec.Raw]))
    assert is_dataclass(kind), "every message is one"
    needed = sum(field.default is MISSING for field in fields(kind))
    return _field_types(kind, count) if needed <= count < len(_names(kind)) else None


def _made(kind: type[Message], values: tuple[object, ...]) -> Message:
    try:
        return kind(*values)
    except ValueError as error:  # fields that contradict each other
        raise RemoteError(f"{kind.__name__} is malformed: {error}.") from None


def _kind(tag: int) -> tuple[type[Message], FieldTypes]:
    found = _KINDS.get(tag)
    if found is None:
        raise RemoteError(
            f"Message tag {tag} is unknown; expected one of {sorted(_KINDS)}. "
            "Install the same release on both sides."
        )
    return found


def _refusal(kind: type[Message], error: MalformedFields) -> RemoteError:
    if isinstance(error, NoFields):
        return RemoteError(f"The {kind.__name__} is not the msgpack that was expected: {error.what}.")
    place = _FIELDS[kind][error.place] if error.place is not None else "its length"
    return RemoteError(f"{kind.__name__} is malformed at {place}: {error.what}.")


def pack(value: object) -> bytes:
    """Plain values as msgpack; tuples become arrays."""
    return _ENCODE(value)


def _plain_number(value: object) -> object:
    """Convert a subclass of a number, such as numpy's float64, to the plain number."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} does not travel: expected numbers, text, bytes and tuples.")


_ENCODE = msgspec.msgpack.Encoder(enc_hook=_plain_number).encode


def unpack(data: bytes) -> Any:  # anything that a peer may pack: the caller checks it
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


def decode(
    frames: list[bytes], *, vocabulary: int | None = None, header_bytes: int = MAX_HEADER_BYTES
) -> Packet:
    """The packet in these frames, everything checked.

    `vocabulary`: tokens that the model knows; None: any number; `header_bytes`: the most that the header may
    have. Raises: RemoteError.
    """
    if not frames or len(frames[0]) > header_bytes:
        raise RemoteError(f"A packet needs a header of at most {header_bytes} bytes.")
    try:
        tag, protocol, sequence, ack, values = _HEADER.decode(frames[0])
    except msgspec.ValidationError:
        raise RemoteError(
            "The header is not the msgpack array [tag, protocol, sequence, ack, fields]."
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteError(
            f"The header is not the msgpack that was expected: {type(error).__name__}: {error}."
        ) from None
    if protocol != PROTOCOL_VERSION:
        raise RemoteError(
            f"The peer speaks protocol {protocol}, this side speaks {PROTOCOL_VERSION}. "
            "Install the same release on both sides."
        )
    message = read_fields(tag, values)
    payload = tuple(frames[1:])
    check_frames(message, payload, vocabulary=vocabulary)
    return Packet(sequence, ack, message, payload)


def check_frames(message: Message, frames: tuple[bytes, ...], *, vocabulary: int | None = None) -> None:
    """Refuse buffers that contradict the message, unknown tokens, and logprobs that no token can have.

    Raises: RemoteError.
    """
    name = type(message).__name__
    if outgoing := message.outgoing_payload():
        if len(frames) != len(outgoing):
            raise RemoteError(f"{name} came with {len(frames)} frames; expected {len(outgoing)}.")
        return
    incoming = message.incoming_frames()
    expected = [frame.size_bytes for frame in incoming]
    if [len(frame) for frame in frames] != expected:
        raise RemoteError(
            f"{name} came with frames of {[len(f) for f in frames]} bytes; its counts say {expected}."
        )
    for (kind, _), frame in zip(incoming, frames, strict=True):
        if kind == "tokens":
            _check_tokens(name, frame, vocabulary)
        elif kind == "logprobs":
            _check_logprobs(name, frame)
        elif kind in ("trained_logprobs", "token_weights"):
            _check_corrections(name, kind, frame)
    if isinstance(message, Generated) and message.kept_words:
        _check_kept_sets(message, frames, vocabulary)


def _check_kept_sets(message: Generated, frames: tuple[bytes, ...], vocabulary: int | None) -> None:
    if len(message.kept_words) != len(message.counts):
        raise RemoteError(
            f"Generated has kept sets of {len(message.kept_words)} deltas and {len(message.counts)} deltas."
        )
    parts = list(zip(message.counts, message.kept_words, strict=True))
    tokens, _, codes, words = frames
    if wrong := kept_sets.problem(codes, words, tokens=tokens, parts=parts, vocabulary=vocabulary):
        raise RemoteError(f"Generated carries {wrong}.")


def _check_tokens(name: str, frame: bytes, vocabulary: int | None) -> None:
    tokens = np.frombuffer(frame, dtype="<i4")
    if not len(tokens):
        return
    for found in (int(_LEAST(tokens)), int(_MOST(tokens))):
        if found < 0 or (vocabulary is not None and found >= vocabulary):
            limit = f"the model has {vocabulary} tokens" if vocabulary is not None else "none is negative"
            raise RemoteError(f"{name} carries the token id {found}; {limit}.")


def _check_corrections(name: str, kind: str, frame: bytes) -> None:
    found = np.frombuffer(frame, dtype="<f4")
    is_weight = kind == "token_weights"
    good = np.isfinite(found) & (found >= 0) if is_weight else np.isnan(found) | (found <= 1e-3)
    if not bool(good.all()):
        expected = "finite numbers from 0" if is_weight else "numbers <= 0, or nan"
        raise RemoteError(f"{name} carries {kind} that are no {expected}; the trainer is broken.")


def _check_logprobs(name: str, frame: bytes) -> None:
    logprobs = np.frombuffer(frame, dtype="<f4")
    # a NaN among them is both the least and the most, and compares with nothing
    if len(logprobs) and not (_LEAST(logprobs) > -inf and _MOST(logprobs) <= MOST_LOGPROB):
        raise RemoteError(f"{name} carries logprobs that are not finite numbers <= 0; the engine is broken.")
