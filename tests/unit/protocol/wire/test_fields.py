"""Positional fields of known types: what Meta cannot say is asked, and what is wrong is named."""

from dataclasses import fields
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgpack
import pytest
from msgspec import Meta

from protocol.errors import RemoteError
from protocol.messages import KINDS, MAX_ARRAY, PROTOCOL_VERSION, Beat, Count, Endpoint, Generated, Name, Text
from protocol.wire.codec import Packet, decode, encode, pack
from protocol.wire.fields import FieldTypes, MalformedFields, NoFields


class Entry(NamedTuple):
    number: Count
    name: Name


def variadic(hint: Any) -> list[Any]:
    """The arrays of any length in a type, with what their own Meta allows."""
    bound = None
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        bound = next((meta.max_length for meta in metas if isinstance(meta, Meta)), None)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        parts = list(get_type_hints(hint, include_extras=True).values())
        return [found for part in parts for found in variadic(part)]
    if get_origin(hint) is not tuple:
        return []
    parts = [part for part in get_args(hint) if part is not ...]
    own = [bound] if ... in get_args(hint) else []
    return own + [found for part in parts for found in variadic(part)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.__name__)
def test_no_array_of_a_message_is_longer_than_a_header_may_hold(kind):
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        for bound in variadic(hints[field.name]):
            assert bound is not None, f"{kind.__name__}.{field.name} is an array without a bound: use Many"
            assert bound <= MAX_ARRAY


@pytest.mark.parametrize("read", ["decode", "convert"])
@pytest.mark.parametrize(
    ("types", "values", "place", "what"),
    [
        ((Count, Name), (1, "a\nb"), 1, "one line"),
        ((Count, tuple[Name, ...]), (1, ("a", "b\x1b")), 1, "one line"),
        ((tuple[tuple[Name, Count], ...],), ((("a", 1), ("\x00", 2)),), 0, "one line"),
        ((tuple[Entry, ...],), (((1, "a"), (2, "\u202e")),), 0, "one line"),
        ((Count, tuple[Endpoint, ...]), (1, ("tcp://h:1", "tcp://h:0")), 1, "tcp://HOST:PORT"),
        ((Count, tuple[Entry, ...]), (1, ((1, "a"), (-1, "b"))), 1, "greater than or equal to 0"),
        ((Count, tuple[Entry, ...]), (1, ((1, "a", 2),)), 1, "length 2"),
        ((Count, tuple[Entry, ...]), (1, ((1,),)), 1, "length 2"),
        ((Count, Count), (1,), None, "length 2"),
        ((Count, Count), (1, 2, 3), None, "length 2"),
        ((Count, Count), (1, None), 1, "valid integer"),
        ((float,), ("1",), 0, "valid number"),
        ((Annotated[str, Meta(max_length=2)],), ("abc",), 0, "at most 2 characters"),
    ],
)
def test_the_field_that_is_wrong_is_named(read, types, values, place, what):
    tried = getattr(FieldTypes(types), read)
    with pytest.raises(MalformedFields, match=what) as raised:
        tried(msgpack.packb(values) if read == "decode" else values)
    assert raised.value.place == place


def test_text_is_made_plain_wherever_it_stands():
    types = FieldTypes((tuple[tuple[Count, Text], ...], Text))
    found = types.decode(msgpack.packb((((1, "a\x1b"), (2, "b")), "c\x00")))
    assert found == (((1, "a\\x1b"), (2, "b")), "c\\x00")


@pytest.mark.parametrize("data", [b"\x81\x01\x02", b"\xc0", b"\xd4\x05\x00", b"\x91", b"\x91\x01\x00"])
def test_what_is_no_array_is_no_fields(data):
    with pytest.raises(NoFields):
        FieldTypes((Count,)).decode(data)


@pytest.mark.parametrize("size", [MAX_ARRAY + 1, 2**32 - 1])
def test_an_array_that_says_to_be_larger_than_any_is_refused_before_it_is_made(size):
    fields_of_generated = b"\x91\xdd" + size.to_bytes(4, "big") + bytes(MAX_ARRAY + 1)
    header = b"\x95\x07" + bytes([PROTOCOL_VERSION]) + b"\x01\x00" + fields_of_generated
    with pytest.raises(RemoteError):
        decode([header])
    assert Generated.tag == 7


def test_what_is_packed_is_what_msgpack_packs():
    powers = [1 << bits for bits in (0, 5, 7, 8, 15, 16, 31, 32, 52)]
    edges = [sign * power + more for power in powers for sign in (1, -1) for more in (-1, 0)]
    plain = (*edges, 1 << 63, 1.5, -0.0, float("inf"), "", "é" * 40, "x" * 70_000, b"", b"y" * 300, None)
    assert pack(plain) == msgpack.packb(plain, use_bin_type=True)
    assert pack(("é" * 16, tuple(range(16)), (0,) * 70_000)) == msgpack.packb(
        ("é" * 16, tuple(range(16)), (0,) * 70_000)
    )
    assert encode(Packet(1, 2, Beat(), ())) == [msgpack.packb((Beat.tag, PROTOCOL_VERSION, 1, 2, ()))]


def test_a_number_of_numpys_travels_as_a_number_and_an_object_does_not():
    numpy = pytest.importorskip("numpy")
    assert pack((numpy.float64(0.1),)) == pack((0.1,))
    with pytest.raises(TypeError, match="object does not travel"):
        pack((object(),))
