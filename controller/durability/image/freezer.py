"""Turns a whole core into bytes, so that a run resumes without stepping through all of its history.

Invariants: the core that `thaw` makes decides as the frozen one would have, whatever events come; shared
objects stay shared; no code is stored: object 0 of every image is the core's `Strategies`, which the image
does not hold. Equal cores have equal images, in every process.
"""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import msgpack
import numpy as np
from pydantic import BaseModel

from controller.core.core import Core
from controller.core.state import told
from controller.durability.image.classes import (
    ARRAY,
    COUNTER,
    DEQUE,
    DICT,
    FIRST_SHAPE,
    LIST,
    MODEL,
    NAMES,
    NUMBER,
    PACKED,
    PACKED_ALONE,
    PLAIN,
    REFERENCE,
    SET,
    TUPLE,
    InParts,
    Shape,
    attributes_in,
    attributes_of,
)
from protocol.errors import LocalError

if TYPE_CHECKING:
    from controller.durability.image.thawer import Thawer

Encode = Callable[[Any], Any]  # from a value to one that MessagePack can pack
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


class Freezer:
    """Makes images of one core, one after the other."""

    def __init__(self) -> None:
        self._alone: dict[int, tuple[object, bytes]] = {}  # by id; holding the object keeps its id
        self._used: dict[int, int] = {}  # by id of what the image being made packs alone: its place there
        self._is_whole = True

    def freeze(self, core: Core) -> bytes:
        """Make the image. Raises: LocalError naming a value that no image can hold."""
        self._is_whole = True
        return self._image(core)

    def freeze_in_parts(self, core: Core) -> InParts:
        """Make the image in parts, for callers that keep many. Raises: LocalError as `freeze`."""
        self._is_whole = False
        skeleton = self._image(core)
        return InParts(skeleton, tuple(self._alone[key][1] for key in self._used))

    def learn(self, thawer: "Thawer") -> None:
        """Take over the objects packed alone in the image that this thawer read last."""
        self._alone |= {id(found): (found, packed) for packed, found in thawer.alone.items()}

    def _image(self, core: Core) -> bytes:
        self._used = {}
        core.state.disposal.clear()  # decisions do not depend on when it is freed
        core.training.figures.settle()
        for instance in core.state.registry.instances():
            if isinstance(instance.told, told.ToldInstance):  # no decision depends on who looked at it
                instance.told.columns.settle()
        with without_collecting():
            image = _Encoder(core.state.strategies, self._pack_alone).whole(core)
        self._alone = {key: found for key, found in self._alone.items() if key in self._used}
        return image

    def _pack_alone(self, value: Any) -> list[Any]:
        key = id(value)
        if key not in self._alone:  # with its own encoder, so that equal values give equal bytes
            self._alone[key] = value, _Encoder(None, self._pack_alone).whole(value)
        place = self._used.setdefault(key, len(self._used))
        return [PACKED, self._alone[key][1] if self._is_whole else place]


class _Encoder:
    """Turns the objects of one image into what MessagePack can pack, with a function for each class."""

    def __init__(self, first: object, pack_alone: Encode) -> None:
        """`first` is object 0, which is not written; `pack_alone` encodes objects of PACKED_ALONE."""
        self._shapes: dict[Shape, int] = {}
        self._seen = {id(first): 0}
        self._encoders: dict[type, Encode] = {
            tuple: lambda v: [TUPLE, *self._values(v)],
            np.float64: lambda v: [NUMBER, float(v)],
            list: self._once(lambda v: [LIST, *self._values(v)]),
            dict: self._once(lambda v: [DICT, *self._pairs(v)]),
            set: self._once(lambda v: [SET, *sorted(v)]),
            deque: self._once(lambda v: [DEQUE, v.maxlen, *self._values(v)]),
            Counter: self._once(lambda v: [COUNTER, *self._pairs(v)]),
            np.ndarray: self._once(lambda v: [ARRAY, v.dtype.str, list(v.shape), v.tobytes()]),
            **dict.fromkeys(PACKED_ALONE, pack_alone),
        }

    def whole(self, root: Any) -> bytes:
        """Encode one value, with the shapes of all objects in it. Raises: LocalError."""
        kind = type(root)
        try:
            encoded = self._encoder_of(kind)(root) if kind in PACKED_ALONE else self._value(root)
        finally:
            self._encoders.clear()  # a cycle, which would wait for the garbage collector
        return _pack(([[name, list(names)] for name, names in self._shapes], encoded))

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        encode = self._encoders.get(kind)
        if encode is None:
            encode = self._encoders[kind] = self._encoder_of(kind)
        return encode(value)

    def _values(self, values: Iterable[Any]) -> list[Any]:
        value = self._value  # called only for values that are not plain; of the millions, most are
        return [one if type(one) in PLAIN else value(one) for one in values]

    def _pairs(self, mapping: dict[Any, Any]) -> Iterator[Any]:
        value = self._value
        for key, one in mapping.items():
            yield key if type(key) in PLAIN else value(key)
            yield one if type(one) in PLAIN else value(one)

    def _once(self, encode: Encode) -> Encode:
        """Encode an object the first time; after that, encode a reference to its number."""
        seen = self._seen

        def encode_once(one: Any) -> list[Any]:
            key = id(one)
            number = seen.get(key)
            if number is not None:
                return [REFERENCE, number]
            seen[key] = len(seen)
            return encode(one)

        return encode_once

    def _encoder_of(self, kind: type) -> Encode:
        """The function that encodes objects of a class; it raises LocalError for a class not in CLASSES."""
        if kind not in NAMES:
            return self._once(_refuse)
        if issubclass(kind, BaseModel):
            return self._once(lambda v: [MODEL, NAMES[kind], v.model_dump_json()])
        names = attributes_of(kind)
        if names is None:
            return self._once(self._with_names)
        encode = _code_for(kind)(self._shape(kind, names), self._value, PLAIN)
        return encode if issubclass(kind, tuple) else self._once(encode)

    def _with_names(self, one: Any) -> list[Any]:
        """Encode an object without slots: the image lists the names of its attributes."""
        names = attributes_in(one)
        return [self._shape(type(one), tuple(names)), *self._values([getattr(one, name) for name in names])]

    def _shape(self, kind: type, names: tuple[str, ...]) -> int:
        return FIRST_SHAPE + self._shapes.setdefault((NAMES[kind], names), len(self._shapes))


def _refuse(value: object) -> NoReturn:
    kind = type(value)
    raise LocalError(
        f"A core holds {value!r:.200} of {kind.__module__}.{kind.__qualname__}, which no image can hold; "
        "expected plain values, or classes of MODULES in durability/image/classes.py: add its module there."
    )


@cache
def _code_for(kind: type) -> Callable[[int, Encode, frozenset[type]], Encode]:
    """Compile an encoder of a class's objects: for a million, a loop over their attributes is slow.

    Its source is made of the attribute names of the class, as `dataclasses` makes `__init__`.
    """
    names = attributes_of(kind) or ()
    encoded = ", ".join(f"a{i} if type(a{i}) in plain else value(a{i})" for i in range(len(names)))
    lines = (
        "def bind(tag, value, plain):",
        "    def encode(one):",
        *(f"        a{i} = one.{name}" for i, name in enumerate(names)),
        f"        return [tag, {encoded}]",
        "    return encode",
    )
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    return made["bind"]


@contextmanager
def without_collecting() -> Iterator[None]:
    """Pause garbage collection, which took half of the time that making a core or its image takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
