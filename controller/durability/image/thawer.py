"""Turns the bytes of an image back into a core.

Invariants: only objects of CLASSES are made, by creating them and setting their attributes; no code that an
image brings is run: object 0 is the core's `Strategies`, which the caller of `thaw` gives. Bytes that are no
image raise RunError.
"""

from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from typing import Any

import msgpack
import numpy as np

from controller.core.core import Core
from controller.durability.image.classes import (
    ARRAY,
    CLASSES,
    COUNTER,
    DEQUE,
    DICT,
    FIRST_SHAPE,
    LIST,
    MODEL,
    NUMBER,
    PACKED,
    REFERENCE,
    SET,
    TUPLE,
    InParts,
    attributes_of,
)
from controller.durability.image.freezer import without_collecting
from protocol.errors import RunError
from strategies.kinds import Strategies

Decode = Callable[[list[Any]], Any]  # from the encoded form of a value to the value


def thaw(image: bytes, strategies: Strategies) -> Core:
    """Make the core of an image. `strategies`: those of the same configuration, by which the core decides.

    Raises: RunError if the image is damaged, or of a release with other classes.
    """
    return Thawer(strategies).thaw(image)


class Thawer:
    """Makes cores of images of one run, one after the other, in any order.

    Invariant: the cores share only objects that never change: the strategies, and the objects packed alone.
    The latter are most of an image, and mostly equal to those of the image before; they are kept from one
    image to the next, and no longer.
    """

    def __init__(self, strategies: Strategies) -> None:
        self._strategies = strategies
        self.alone: dict[bytes, Any] = {}
        """What the last image had packed."""

    def thaw(self, image: bytes | InParts) -> Core:
        """Make the core of an image. Raises: RunError as `thaw`."""
        whole, parts = image if isinstance(image, InParts) else (image, ())
        with without_collecting():
            try:
                shapes, root = msgpack.unpackb(
                    whole, raw=False, strict_map_key=False, max_array_len=len(whole), max_ext_len=0
                )
                made = _Decoder(shapes, self._strategies, self.alone, parts)
                found = made.whole(root)
            except (
                ValueError,
                TypeError,
                KeyError,
                IndexError,
                AttributeError,
                OverflowError,
                SyntaxError,  # raised for a malformed dtype
                RecursionError,
                msgpack.UnpackException,
            ) as error:
                raise RunError(
                    f"A snapshot of the core cannot be read: {type(error).__name__}: {error}. Expected one "
                    "that this release made; the journal has the same run event by event."
                ) from error
        if not isinstance(found, Core):
            raise RunError(f"A snapshot holds {type(found).__name__}; expected a Core.")
        self.alone = made.alone
        return found


class _Decoder:
    """Makes the objects of one image, with a function for each tag."""

    def __init__(
        self,
        shapes: list[tuple[str, list[str]]],
        strategies: Strategies,
        known: dict[bytes, Any],
        parts: tuple[bytes, ...] = (),
    ) -> None:
        """`known`: the objects packed alone in the image before. Raises: ValueError, TypeError, KeyError."""
        self._strategies, self._known, self._parts = strategies, known, parts
        self.alone: dict[bytes, Any] = {}
        self._seen: list[Any] = [strategies]
        self._decoders: dict[int, Decode] = {
            REFERENCE: lambda item: self._seen[item[1]],
            TUPLE: lambda item: tuple(self._values(item, 1)),
            LIST: self._list,
            DICT: lambda item: self._fill({}, item),
            COUNTER: lambda item: self._fill(Counter(), item),
            SET: lambda item: self._number(set(item[1:])),
            DEQUE: self._deque,
            ARRAY: lambda item: self._number(
                np.frombuffer(item[3], dtype=np.dtype(item[1])).reshape(item[2]).copy()
            ),
            NUMBER: lambda item: np.float64(item[1]),
            MODEL: lambda item: self._number(CLASSES[item[1]].model_validate_json(item[2])),
            PACKED: lambda item: self._packed_alone(item[1]),
        }
        for tag, (name, names) in enumerate(shapes, start=FIRST_SHAPE):
            self._decoders[tag] = self._decoder_of(CLASSES[name], tuple(names))

    def whole(self, root: Any) -> Any:
        """Decode the value of an image. Raises: whatever a damaged one leads to."""
        try:
            return self._value(root)
        finally:
            self._decoders.clear()  # a cycle, which holds every object that was made

    def _value(self, item: Any) -> Any:
        return self._decoders[item[0]](item) if type(item) is list else item

    def _values(self, item: list[Any], begin: int) -> list[Any]:
        decoders = self._decoders  # called only for values that are not plain; of the millions, most are
        return [decoders[one[0]](one) if type(one) is list else one for one in item[begin:]]

    def _number(self, made: Any) -> Any:
        """Give a number to an object that holds no other."""
        self._seen.append(made)
        return made

    def _list(self, item: list[Any]) -> list[Any]:
        self._seen.append(made := [])
        made += self._values(item, 1)
        return made

    def _deque(self, item: list[Any]) -> deque[Any]:
        self._seen.append(made := deque[Any](maxlen=item[1]))
        made.extend(self._values(item, 2))
        return made

    def _fill(self, made: dict[Any, Any], item: list[Any]) -> dict[Any, Any]:
        self._seen.append(made)
        value, rest = self._value, iter(item)
        next(rest)
        for key, one in zip(rest, rest, strict=True):
            key = value(key)
            made[key] = value(one) if type(one) is list else one
        return made

    def _packed_alone(self, where: bytes | int) -> Any:
        packed = where if isinstance(where, bytes) else self._parts[where]
        found = self._known.get(packed)
        if found is None:
            shapes, root = msgpack.unpackb(packed, raw=False, max_array_len=len(packed))
            found = _Decoder(shapes, self._strategies, {}).whole(root)
        self.alone[packed] = found
        return found

    def _decoder_of(self, kind: type, names: tuple[str, ...]) -> Decode:
        """The function that decodes a shape. Raises: ValueError if the class has other attributes now."""
        known = attributes_of(kind)
        if known is None or (known != names and sorted(known) == sorted(names)):
            # of a core that is compiled, read by one that is not, or the other way round
            return lambda item: self._with_names(kind, names, item)
        if known != names:
            raise ValueError(f"{kind.__name__} had the attributes {names}, and has {known}")
        return _code_for(kind)(self._value, self._seen.append)

    def _with_names(self, kind: type, names: tuple[str, ...], item: list[Any]) -> Any:
        """Decode an object without slots: its attribute names come from the image, and are never code."""
        made: object = self._number(kind.__new__(kind))  # pyright: ignore[reportCallIssue]  # made without __init__
        for name, one in zip(names, item[1:], strict=True):
            object.__setattr__(made, name, self._value(one))
        return made


@cache
def _code_for(kind: type) -> Callable[[Callable[[Any], Any], Callable[[Any], None]], Decode]:
    """Compile a decoder of a class's objects: for a million, a loop over their attributes is slow.

    Its source is made of the attribute names of the class, as `dataclasses` makes `__init__`, and of nothing
    that an image says.
    """
    names = attributes_of(kind) or ()
    values = [f"value(a{i}) if type(a{i}) is list else a{i}" for i in range(len(names))]
    if issubclass(kind, tuple):
        body = [f"return new(kind, ({''.join(f'{value}, ' for value in values)}))"]
    else:
        is_frozen = kind.__setattr__ is not object.__setattr__
        put = "put(made, {!r}, {})" if is_frozen else "made.{} = {}"
        body = ["made = new(kind)", "number(made)"]
        body += [put.format(name, value) for name, value in zip(names, values, strict=True)]
        body.append("return made")
    lines = (
        "def bind(value, number):",
        "    def decode(item):",
        f"        _, {', '.join(f'a{i}' for i in range(len(names)))} = item",
        *(f"        {line}" for line in body),
        "    return decode",
    )
    new = tuple.__new__ if issubclass(kind, tuple) else kind.__new__
    made: dict[str, Any] = {"kind": kind, "new": new, "put": object.__setattr__}
    exec("\n".join(lines), made)
    return made["bind"]
