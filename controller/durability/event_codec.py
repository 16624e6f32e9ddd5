"""Events to bytes and back, for the journal: positional msgpack `[tag, *fields]` with a closed schema.

Invariants: decoding gives back an equal event, or raises; tags are never reused; a message inside Received
travels as its own tag and fields, checked by `protocol.wire.codec` as on the wire; an event or a message
that an older release kept gets the defaults of the fields that the older release did not have.
"""

from dataclasses import MISSING, fields
from typing import get_args, get_type_hints

from msgspec import Raw

from controller.core.events import Event, Received
from protocol.errors import RemoteError
from protocol.messages import by_tag
from protocol.wire.codec import pack, read_kept_fields, to_fields
from protocol.wire.fields import FieldTypes, MalformedFields

TAG_PLACE = 2  # place of the byte that is an event's tag, counted from 1
_TAGGED = by_tag(get_args(Event))
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGGED.values()}
_SHORT_ARRAY = 0x90  # first byte of a MessagePack array of up to 15 items, to which their number is added
_MOST_ITEMS, _MOST_TAG = 15, 127  # the largest that take one byte each


def _field_types(kind: type, count: int | None = None) -> FieldTypes:
    """The types of the tag and of the fields after it, or of the first `count` of these."""
    if kind is Received:
        return FieldTypes((int, str, int, Raw))
    hints = get_type_hints(kind, include_extras=True)
    return FieldTypes((int, *(hints[name] for name in _FIELDS[kind][:count])))


_KINDS: dict[int, tuple[type, FieldTypes]] = {
    tag: (kind, _field_types(kind)) for tag, kind in _TAGGED.items()
}
_OLDER = {
    (tag, count): _field_types(kind, count)
    for tag, kind in _TAGGED.items()
    for count, field in enumerate(fields(kind))
    if field.default is not MISSING
}
"""The types of events that lack the newest fields, by tag and by the number of fields after it."""
assert all(tag <= _MOST_TAG and len(_FIELDS[kind]) < _MOST_ITEMS for tag, kind in _TAGGED.items())


def encode_event(event: Event) -> bytes:
    """Encode an event as the bytes that the journal keeps."""
    if isinstance(event, Received):
        return pack((event.tag, event.peer, event.message.tag, to_fields(event.message)))
    return pack((event.tag, *(getattr(event, name) for name in _FIELDS[type(event)])))


def decode_event(data: bytes) -> Event:
    """Decode the event in these bytes, strictly validated. Raises: RemoteError."""
    is_short = len(data) > 1 and data[0] & 0xF0 == _SHORT_ARRAY
    found = _KINDS.get(data[1]) if is_short else None
    if found is None:
        raise RemoteError(
            f"A journal record begins with {data[:40]!r}; expected an array with a tag of "
            f"{sorted(_KINDS)}. Was it written by another release?"
        )
    kind, types = found
    types = _OLDER.get((data[1], (data[0] & _MOST_ITEMS) - 1), types)
    try:
        _, *values = types.decode(data)
    except MalformedFields as error:
        place = "its length" if not error.place else _FIELDS[kind][error.place - 1]
        raise RemoteError(
            f"The journal's {kind.__name__} is malformed at {place}: {error.what}. "
            "Was it written by another release?"
        ) from None
    if kind is Received:
        peer, message_tag, packed = values
        return Received(peer, read_kept_fields(message_tag, packed))
    return kind(*values)
