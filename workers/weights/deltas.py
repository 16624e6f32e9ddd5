"""Deltas: chunks of a version as differences from the same chunk of an older version.

At learning rates of RL, nearly all bfloat16 weights stay the same, bit for bit, in a step (`python -m
benchmarks.weight_deltas` measures how many). SparseRL-Sync (arXiv 2605.07330) and slime send differences,
too.

Invariants: a delta is exact: applied to its base it gives the very bytes, which the published checksum of the
chunk confirms; a delta that would save less than a third of its chunk is not made; a peer's data never makes
a reader allocate more than the size of a chunk.
"""

import zlib
from collections import OrderedDict
from typing import NamedTuple

import numpy as np

from protocol.errors import WeightsError

WORST_SHARE = 2 / 3  # of the chunk: above it the chunk itself is sent
WORD_BYTES = 2  # what is compared: a bfloat16
ENTRY_BYTES = 4 + WORD_BYTES  # per differing word before compression: a gap and the bits
LEVEL = 1  # of zlib; 6 takes 3 to 5 times as long for a tenth fewer bytes
HOPELESS = 8  # useless deltas in a row; then no more of this version are tried on this base
MAX_CACHED_BYTES = 256 << 20

Chunk = bytes | memoryview


class Pair(NamedTuple):
    """A version, and the base that its deltas are against."""

    policy_version: int
    base: int


def encode(chunk: Chunk, base: Chunk) -> bytes | None:
    """The delta from base to chunk, of equal length; None if it would save less than a third."""
    differing = _words(chunk) ^ _words(base)
    places = np.flatnonzero(differing)
    if len(places) * ENTRY_BYTES > len(chunk):
        return None
    gaps = np.diff(places, prepend=0).astype("<u4")
    planes = [_planes(gaps, 4), _planes(differing[places], WORD_BYTES)]
    made = zlib.compress(b"".join(planes), LEVEL)
    return made if len(made) <= WORST_SHARE * len(chunk) else None


def decode(delta: Chunk, base: Chunk) -> memoryview:
    """The chunk, whose checksum the caller compares.

    Raises: WeightsError if this is not a delta of such a base.
    """
    unpacker = zlib.decompressobj()
    try:
        planes = unpacker.decompress(delta, max(1, len(base)))
    except zlib.error as error:
        raise WeightsError(f"a delta of {len(delta)} bytes cannot be unpacked: {error}") from None
    count = len(planes) // ENTRY_BYTES
    if not unpacker.eof or len(planes) % ENTRY_BYTES:
        raise WeightsError(f"a delta of {len(delta)} bytes unpacks to a size that no delta of its chunk has")
    words = _words(base).copy()
    places = np.cumsum(_unplane(planes[: 4 * count], "<u4"), dtype=np.int64)
    if count and int(places.max()) >= len(words):
        raise WeightsError(f"a delta changes word {int(places.max())} of a chunk of {len(words)}")
    words[places] ^= _unplane(planes[4 * count :], "<u2")
    return words.data.cast("B")[: len(base)]


class DeltaCache:
    """Deltas that were made or received, so that each is made once for all readers."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[Pair, int], bytes] = OrderedDict()
        self._bytes = 0
        self._misses: dict[Pair, int] = {}  # in a row

    def find(self, pair: Pair, index: int) -> bytes | None:
        """The delta of a chunk if it is cached."""
        return self._held.get((pair, index))

    def is_worth_trying(self, pair: Pair) -> bool:
        """Whether recent chunks of this version had useful deltas against this base."""
        return self._misses.get(pair, 0) < HOPELESS

    def make(self, pair: Pair, index: int, chunk: Chunk, base: Chunk) -> bytes | None:
        """Make and cache the delta of a chunk; None if it saves too little."""
        made = encode(chunk, base)
        self._misses[pair] = self._misses.get(pair, 0) + 1 if made is None else 0
        if made is not None:
            self.keep(pair, index, made)
        return made

    def keep(self, pair: Pair, index: int, delta: bytes) -> None:
        """Cache a delta that was made, or received and verified; the oldest are dropped if there are many."""
        if (pair, index) in self._held:
            return
        self._held[pair, index] = delta
        self._bytes += len(delta)
        while self._bytes > MAX_CACHED_BYTES:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest)

    def forget(self, policy_version: int) -> None:
        """A version is gone: drop the deltas from it and to it."""
        for key in [key for key in self._held if policy_version in key[0]]:
            self._bytes -= len(self._held.pop(key))
        self._misses = {pair: count for pair, count in self._misses.items() if policy_version not in pair}


def _words(chunk: Chunk) -> np.ndarray:
    """The chunk as 16-bit words; an odd last byte is padded with a zero."""
    if len(chunk) % WORD_BYTES:
        chunk = bytes(chunk) + b"\0"
    return np.frombuffer(chunk, dtype="<u2")


def _planes(values: np.ndarray, size: int) -> bytes:
    """The first bytes of all values, then the second ones, and so on, which compresses better."""
    return values.view(np.uint8).reshape(-1, size).T.tobytes()


def _unplane(planes: bytes, dtype: str) -> np.ndarray:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(planes, dtype=np.uint8).reshape(size, -1).T.copy().view(dtype).reshape(-1)
