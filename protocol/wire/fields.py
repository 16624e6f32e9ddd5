"""Decodes positional fields of known types, from MessagePack or from plain values, strictly checked.

Invariants: checks that types cannot express (`finish` in the `extra` of a `Meta`) are made after the
decoding, in the same call; any error raises MalformedFields, which names the first wrong field.
"""

import re
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec

Value = Any  # of a field: checked against its type before anything reads it
Hint = Any  # a type, as annotations give it
Finish = Callable[[Value], Value]
_PLACE = re.compile(r"(.*) - at `\$\[(\d+)\].*`", re.DOTALL)
_LARGEST = "1.7976931348623157e+308"
_NAMES = {
    "int": "a valid integer",
    "float": "a valid number",
    "bool": "a valid boolean",
    "str": "a valid string",
}
_BOUNDS = {
    ">=": "greater than or equal to",
    "<=": "less than or equal to",
    ">": "greater than",
    "<": "less than",
}


class MalformedFields(Exception):
    """`place`: index of the wrong field; None if the number of fields is wrong. `what`: in words."""

    def __init__(self, place: int | None, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


class NoFields(MalformedFields):
    """These bytes are no array of fields at all."""


class FieldTypes:
    """The types of some fields, in order."""

    def __init__(self, types: Sequence[Hint]) -> None:
        self._whole: Hint = GenericAlias(tuple, tuple(types))
        self._decoder = msgspec.msgpack.Decoder(self._whole)
        found = ((place, finisher(one)) for place, one in enumerate(types))
        self._finishers = [(place, finish) for place, finish in found if finish is not None]

    def decode(self, data: bytes | msgspec.Raw) -> tuple[Value, ...]:
        """The fields in a MessagePack array. Raises: MalformedFields."""
        try:
            values = self._decoder.decode(data)
        except msgspec.ValidationError as error:
            raise _in_words(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NoFields(None, f"{type(error).__name__}: {error}") from None
        return self._finished(values)

    def convert(self, values: object) -> tuple[Value, ...]:
        """The fields from plain values, such as `to_fields` of codec.py gives. Raises: MalformedFields."""
        try:
            found = msgspec.convert(values, self._whole)
        except msgspec.ValidationError as error:
            raise _in_words(error) from None
        return self._finished(found)

    def _finished(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        if not self._finishers:
            return values
        made = list(values)
        for place, finish in self._finishers:
            try:
                made[place] = finish(made[place])
            except ValueError as error:
                raise MalformedFields(place, str(error)) from None
        return tuple(made)


def finisher(hint: Hint) -> Finish | None:
    """The check of a value of this type that goes beyond the type; None: there is none."""
    if get_origin(hint) is Annotated:
        base, *metas = get_args(hint)
        extras = [meta.extra["finish"] for meta in metas if isinstance(meta, msgspec.Meta) and meta.extra]
        inner = finisher(base)
        return _chain([*([inner] if inner else []), *extras])
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(cast("Hint", hint), "_fields"):
        named = cast("Hint", hint)
        hints = get_type_hints(named, include_extras=True)
        each = [finisher(hints[name]) for name in named._fields]
        return _each(each, named._make) if any(each) else None
    if get_origin(hint) is tuple:
        first, *rest = get_args(hint) or (None,)
        if rest == [...]:
            item = finisher(first)
            return None if item is None else lambda values: tuple(map(item, values))
        each = [finisher(one) for one in (first, *rest)]
        return _each(each, tuple) if any(each) else None
    return None


def _chain(steps: list[Finish]) -> Finish | None:
    if len(steps) < 2:
        return steps[0] if steps else None

    def all_of_them(value: Value) -> Value:
        for step in steps:
            value = step(value)
        return value

    return all_of_them


def _each(steps: list[Finish | None], make: Finish) -> Finish:
    def finish(values: Value) -> Value:
        return make(step(one) if step else one for step, one in zip(steps, values, strict=True))

    return finish


def _in_words(error: msgspec.ValidationError) -> MalformedFields:
    text = str(error)
    place = None
    if found := _PLACE.fullmatch(text):
        text, place = found[1], int(found[2])
    elif not text.startswith("Expected `array` of length"):
        return NoFields(None, f"it is no array of fields: {text}")
    if text.endswith(_LARGEST):
        text = "expected a finite number"
    elif found := re.fullmatch(r"Expected `(\w+)`, got `(\w+)`", text):
        text = f"expected {_NAMES.get(found[1], found[1])}, got {found[2]}"
    elif found := re.fullmatch(r"Expected `(\w+)` (>=|<=|>|<) (\S+)", text):
        text = f"expected a{' finite' if found[1] == 'float' else ''} number {_BOUNDS[found[2]]} {found[3]}"
    elif found := re.fullmatch(r"Expected `str` of length (>=|<=) (\d+)", text):
        text = f"expected at {'least' if found[1] == '>=' else 'most'} {found[2]} characters"
    return MalformedFields(place, text)
