"""Calls between two processes over a socket: plain data by value, the program's other objects by number.

Invariants: incoming data are decoded to Python's own types, and never executed; the program's process gets no
objects of the tests' process except functions that the tests pass to it. A message is JSON, preceded by its
length.
"""

import json
import os
import socket
import struct
import sys

TYPE_CHECKING = False  # the real one is in a module whose import takes longer than a program
if TYPE_CHECKING:
    from typing import Any

CHANNEL = 4
MOST_BYTES = 1 << 26


class Gone(Exception):
    """The other process has ended, or closed the socket."""


class Raised(Exception):
    """The other process raised an exception."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Peer:
    """One end of a connection between two programs.

    `perform(request)` answers requests of the other end; `hand` and `take` convert values that are not plain
    data to JSON, and back.
    """

    def __init__(self, perform, hand, take):
        self._socket = socket.socket(fileno=CHANNEL)
        self._perform, self._hand, self._take = perform, hand, take

    def ask(self, *request) -> "Any":
        """The other end's answer, as JSON; its own requests are answered meanwhile. Raises: Gone, Raised."""
        self._send(request)
        while True:
            kind, *rest = self._receive()
            if kind == "answer":
                return rest[0]
            if kind == "raised":
                raise Raised(str(rest[0]), str(rest[1]))
            self._send(self._perform([kind, *rest]))

    def serve(self):
        """Answer until the other end closes. Raises: Gone."""
        while True:
            self._send(self._perform(self._receive()))

    def encode(self, value: "Any") -> "Any":
        """Plain data as JSON. Raises: as `hand`; RecursionError."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -(2**63) < value < 2**63 else {"int": hex(value)}
        for base, name in ((list, "list"), (tuple, "tuple"), (set, "set"), (frozenset, "frozenset")):
            if isinstance(value, base):
                items = [self.encode(item) for item in value]
                return items if base is list else {name: items}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, str):
            return str.__str__(value)
        for base in (int, float):
            if isinstance(value, base):
                return self.encode(base(value))
        if isinstance(value, bytes | bytearray):
            return {kind.__name__ if kind is bytearray else "bytes": bytes(value).hex()}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if _is(value, "decimal", "Decimal"):
            return {"decimal": str(value)}
        if _is(value, "fractions", "Fraction"):
            return {"fraction": [self.encode(value.numerator), self.encode(value.denominator)]}
        if kind.__module__ == "numpy" and hasattr(value, "tolist"):
            if getattr(value, "ndim", 0) == 0:
                return self.encode(value.tolist())
            return {"array": [str(value.dtype), self.encode(value.tolist())]}
        return self._hand(value)

    def decode(self, data) -> "Any":
        """The value of JSON from `encode`. Raises: ValueError if it is malformed."""
        if isinstance(data, list):
            return [self.decode(item) for item in data]
        if not isinstance(data, dict):
            return data
        if len(data) != 1:
            raise ValueError(f"{data!r:.80} is no value")
        ((kind, value),) = data.items()
        if kind in ("tuple", "set", "frozenset"):
            maker = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return maker(self.decode(item) for item in value)
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in value}
        if kind == "int":
            return int(value, 16)
        if kind in ("bytes", "bytearray"):
            return {"bytes": bytes, "bytearray": bytearray}[kind].fromhex(value)
        if kind == "complex":
            return complex(*value)
        if kind == "decimal":
            from decimal import Decimal

            return Decimal(value)
        if kind == "fraction":
            from fractions import Fraction

            return Fraction(self.decode(value[0]), self.decode(value[1]))
        if kind == "array":
            return _array(value[0], self.decode(value[1]))
        return self._take(kind, value)

    def _send(self, message):
        data = json.dumps(message).encode()
        try:
            self._socket.sendall(struct.pack(">I", len(data)) + data)
        except OSError:
            raise Gone from None

    def _receive(self):
        """The next message. Raises: Gone, also if it is malformed: its sender will not answer."""
        (length,) = struct.unpack(">I", self._read(4))
        if length > MOST_BYTES:
            raise Gone
        try:
            message = json.loads(self._read(length))
        except (ValueError, RecursionError):
            raise Gone from None
        if not isinstance(message, list) or len(message) < 2 or not isinstance(message[0], str):
            raise Gone
        return message

    def _read(self, length):
        data = bytearray()
        while len(data) < length:
            try:
                more = os.read(CHANNEL, min(1 << 20, length - len(data)))
            except OSError:
                more = b""
            if not more:
                raise Gone
            data += more
        return bytes(data)


def _is(value, module, name):
    """Whether the value is of a class that must not be imported here."""
    return module in sys.modules and type(value) is getattr(sys.modules[module], name)


def _array(dtype, items):
    """An array; of float64 where numpy would round what it is compared with to a float16, or to infinity."""
    try:
        import numpy

        array = numpy.array(items, dtype=dtype)
        if array.dtype == numpy.float16 or (array.dtype.kind == "f" and not numpy.isfinite(array).all()):
            return numpy.array(items, dtype=float)
        return array
    except (ImportError, TypeError, ValueError):
        return items
