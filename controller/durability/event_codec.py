"""Events to bytes and back, for the journal: positional msgpack `[tag, *fields]` with a closed schema.

Invariants: decoding gives back an equal event, or raises; tags are never reused; a message inside Received
travels as its own tag and fields, checked by `protocol.wire.codec` exactly as on the wire.
"""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from controller.core.events import Event, Received
from protocol.errors import RemoteError
from protocol.messages import by_tag
from protocol.wire.codec import from_fields, pack, to_fields, unpack

_TAGGED = by_tag(get_args(Event))
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGGED.values()}


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind is Received:
        return TypeAdapter(tuple[str, int, tuple[Any, ...]])
    hints = get_type_hints(kind, include_extras=True)
    types = tuple(hints[name] for name in _FIELDS[kind])
    return TypeAdapter(tuple[types] if types else tuple[()])  # type: ignore[valid-type]


_KINDS: dict[int, tuple[type, TypeAdapter[Any]]] = {
    tag: (kind, _adapter(kind)) for tag, kind in _TAGGED.items()
}


def encode_event(event: Event) -> bytes:
    """The bytes that the journal keeps of an event."""
    if isinstance(event, Received):
        return pack((event.tag, event.peer, event.message.tag, to_fields(event.message)))
    return pack((event.tag, *(getattr(event, name) for name in _FIELDS[type(event)])))


def decode_event(data: bytes) -> Event:
    """The event in these bytes, strictly validated. Raises: RemoteError."""
    record = unpack(data)
    tag = record[0] if isinstance(record, tuple) and record and type(record[0]) is int else None
    found = _KINDS.get(tag) if tag is not None else None
    if found is None:
        raise RemoteError(
            f"A journal record begins with {str(record)[:80]!r}; expected an array with a tag of "
            f"{sorted(_KINDS)}. Was it written by another release?"
        )
    kind, adapter = found
    try:
        values = adapter.validate_python(record[1:], strict=True)
    except ValidationError as error:
        raise RemoteError(
            f"The journal's {kind.__name__} is malformed: {error.errors()[0]['msg']} at "
            f"{error.errors()[0]['loc']}. Was it written by another release?"
        ) from None
    if kind is Received:
        peer, message_tag, message_fields = values
        return Received(peer, from_fields(message_tag, message_fields))
    return kind(*values)
