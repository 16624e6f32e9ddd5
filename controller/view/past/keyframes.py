"""Keyframes: images of a run's core by event, in memory, from which a replay to a moment begins.

Invariants: images are compressed, and what several of them hold alike (batches, which stay the same until a
checkpoint covers them) is there once; they take no more than their room; when it is full, one goes whose
neighbours are nearest to each other, so that distances stay alike, the longest about twice the shortest.
"""

import zlib
from bisect import bisect_left, bisect_right
from hashlib import blake2b
from typing import NamedTuple

from controller.durability.image.classes import InParts

FIRST_SPACING = 500  # events between two keyframes: a tenth of a second of stepping
DIGEST_BYTES = 12  # of a part; what an image spends on naming one that it shares
LEAST = 2  # keyframes that stay, however small the room is


PlainKeyframes = tuple[int, dict[bytes, bytes], dict[int, tuple[bytes, tuple[bytes, ...]]]]
"""How far they stand apart; compressed parts by digest; by event a compressed skeleton and its parts."""


class Packed(NamedTuple):
    """One image, compressed."""

    skeleton: bytes
    parts: tuple[bytes, ...]  # digests


class Keyframes:
    """All of one replayed core."""

    def __init__(self, room_bytes: int, spacing: int = FIRST_SPACING) -> None:
        self.spacing = spacing
        """Events between two that are of use; it grows as the room fills."""
        self.size = 0
        """Bytes that they take."""
        self._room = room_bytes
        self.numbers: list[int] = []
        """Events after which there is one, ascending."""
        self._images: dict[int, Packed] = {}
        self._parts: dict[bytes, bytes] = {}  # compressed, by digest
        self._uses: dict[bytes, int] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._images

    def before(self, number: int) -> int | None:
        """The nearest at or before an event."""
        place = bisect_right(self.numbers, number)
        return self.numbers[place - 1] if place else None

    def find(self, number: int) -> InParts | None:
        """The image after an event, if there is one."""
        packed = self._images.get(number)
        if packed is None:
            return None
        parts = tuple(zlib.decompress(self._parts[digest]) for digest in packed.parts)
        return InParts(zlib.decompress(packed.skeleton), parts)

    def put(self, number: int, image: InParts) -> None:
        """Have one more, and room for it."""
        digests = tuple(blake2b(part, digest_size=DIGEST_BYTES).digest() for part in image.parts)
        new = {
            digest: zlib.compress(part, 1)
            for digest, part in zip(digests, image.parts, strict=True)
            if digest not in self._parts
        }
        self._take(number, Packed(zlib.compress(image.skeleton, 1), digests), new)

    def forget_before(self, number: int) -> None:
        """Drop those of a history that was deleted."""
        for old in self.numbers[: bisect_left(self.numbers, number)]:
            self._drop(old)

    def as_plain(self) -> PlainKeyframes:
        """All of them, for a file: what `take_over` takes."""
        return self.spacing, dict(self._parts), dict(self._images)

    def take_over(self, plain: PlainKeyframes) -> None:
        """Have these too, of the same history."""
        spacing, parts, images = plain
        self.spacing = max(self.spacing, spacing)
        for number, (skeleton, digests) in images.items():
            self._take(number, Packed(skeleton, tuple(digests)), parts)

    def _take(self, number: int, packed: Packed, parts: dict[bytes, bytes]) -> None:
        if number in self._images:
            return
        for digest in packed.parts:
            if digest not in self._parts:
                self._parts[digest] = parts[digest]
                self.size += len(parts[digest])
            self._uses[digest] = self._uses.get(digest, 0) + 1
        self.numbers.insert(bisect_left(self.numbers, number), number)
        self._images[number] = packed
        self.size += _own_bytes(packed)
        while self.size > self._room and len(self.numbers) > LEAST:
            self._thin_out()

    def _thin_out(self) -> None:
        gap, gone = min(
            (after - before, number)
            for before, number, after in zip(self.numbers, self.numbers[1:], self.numbers[2:], strict=False)
        )
        self._drop(gone)
        self.spacing = max(self.spacing, gap // 2)

    def _drop(self, number: int) -> None:
        packed = self._images.pop(number)
        self.numbers.remove(number)
        self.size -= _own_bytes(packed)
        for digest in packed.parts:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
                self.size -= len(self._parts.pop(digest))


def _own_bytes(packed: Packed) -> int:
    return len(packed.skeleton) + DIGEST_BYTES * len(packed.parts)
