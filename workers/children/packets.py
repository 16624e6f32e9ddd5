"""Packets between a worker and the processes that run its users' code.

Invariants: no I/O; a packet is a secret, a length (4 bytes, big-endian) and msgpack; other bytes in the pipe,
from code that writes to descriptors not its own, are recognized by a missing secret.
"""

from collections.abc import Iterator
from typing import Any

import msgpack

SECRET_BYTES = 16
"""The worker sends a process its secret first; packets to the process carry none."""
LENGTH_BYTES = 4
MAX_TEXT_CHARS = 64_000

OUT_OF_MEMORY = 75
"""The exit code of a keeper whose process took too much memory."""
CLOSED = 74
"""The exit code of a process that has found its pipe closed."""


class GarbageError(Exception):
    """The pipe contains bytes that are not a packet."""


def packet(*parts: Any, secret: bytes = b"") -> bytes:
    """One packet. Characters that UTF-8 cannot encode are escaped."""
    body = msgpack.packb([_printable(part) if isinstance(part, str) else part for part in parts])
    assert isinstance(body, bytes)
    return secret + len(body).to_bytes(LENGTH_BYTES, "big") + body


class Packets:
    """Cuts a stream of bytes into packets."""

    def __init__(self, *, secret: bytes = b"", max_bytes: int = 1 << 32) -> None:
        self._secret, self._max_bytes = secret, max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """The packets that are complete with `data`, as lists. Raises: GarbageError."""
        self._buffer += data
        head = len(self._secret) + LENGTH_BYTES
        while self._buffer:
            begin = self._buffer[: len(self._secret)]
            if begin != self._secret[: len(begin)]:
                raise GarbageError(f"{bytes(self._buffer[:80])!r} is no packet")
            if len(self._buffer) < head:
                return
            length = int.from_bytes(self._buffer[len(self._secret) : head], "big")
            if length > self._max_bytes:
                raise GarbageError(f"a packet of {length} bytes, more than {self._max_bytes}")
            if len(self._buffer) < head + length:
                return
            body = bytes(self._buffer[head : head + length])
            del self._buffer[: head + length]
            yield _unpack(body)


def _unpack(body: bytes) -> list[Any]:
    try:
        parts = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:  # ExtraData and UnicodeDecodeError are ValueErrors
        raise GarbageError(f"a packet that is no msgpack: {error}") from None
    if not isinstance(parts, list) or not parts:
        raise GarbageError(f"a packet that is {type(parts).__name__}, and no list")
    return parts


def _printable(text: str) -> str:
    """The text with surrogates escaped, and with the middle left out if it is long."""
    text = text.encode("utf-8", "backslashreplace").decode()
    half = MAX_TEXT_CHARS // 2
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:half]}\n...\n{text[-half:]}"
