"""Stores the kept sets of one response in the payload: records of consecutive tokens, joined on demand.

A record is the number of its tokens (int32), their codes, and their words, in the form of
protocol/kept_sets.py. Invariant: tokens that no record covers were drawn from the whole vocabulary: code 0.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from protocol.kept_sets import word_counts
from protocol.messages import ITEM_BYTES


def records(counts: Sequence[int], sizes: Sequence[int], kept: bytes) -> Iterator[bytes]:
    """The record of each delta of a report; b"" where every token was drawn from the whole vocabulary.

    `counts`, `sizes`: how many tokens and words each delta has; `kept`: the codes of all deltas, then their
    words. Where sampling cut nothing off, `sizes` and `kept` are empty.
    """
    if not sizes:
        return repeat(b"", len(counts))
    return _records(counts, sizes, kept)


def _records(counts: Sequence[int], sizes: Sequence[int], kept: bytes) -> Iterator[bytes]:
    begin, first = 0, ITEM_BYTES * sum(counts)
    for count, size in zip(counts, sizes, strict=True):
        end, last = begin + ITEM_BYTES * count, first + ITEM_BYTES * size
        yield count.to_bytes(ITEM_BYTES, "little") + kept[begin:end] + kept[first:last] if size else b""
        begin, first = end, last


class KeptSets:
    """The kept sets of one attempt at a response."""

    __slots__ = ("_records", "size_bytes")

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self.size_bytes = 0

    def put(self, start: int, record: bytes) -> None:
        """Take a record of the tokens from `start` on; a second record at the same start is ignored."""
        if start not in self._records:
            self._records[start] = record
            self.size_bytes += len(record)

    def codes(self, count: int) -> bytes:
        """The codes of the first `count` tokens."""
        codes_T = np.zeros(count, dtype="<i4")
        for start, codes_t, _ in self._parts(count):
            codes_T[start : start + len(codes_t)] = codes_t
        return codes_T.tobytes()

    def words(self, count: int) -> bytes:
        """The words of the first `count` tokens, in order."""
        return b"".join(words for _, _, words in self._parts(count))

    def record(self, count: int) -> bytes:
        """One record for the first `count` tokens; b"" if all were drawn from the whole vocabulary."""
        words = self.words(count)
        head = np.int32(count).astype("<i4").tobytes()
        return head + self.codes(count) + words if words else b""

    def _parts(self, count: int) -> list[tuple[int, np.ndarray, bytes]]:
        """Start, codes and words of each stretch below token `count`, none of which overlap."""
        parts, end = [], 0
        for start in sorted(self._records):
            if start >= count:
                break
            data = np.frombuffer(self._records[start], dtype="<i4")
            tokens = int(data[0])
            codes, words = data[1 : 1 + tokens], data[1 + tokens :]
            bounds = np.concatenate([[0], np.cumsum(word_counts(codes))])
            first, last = max(0, end - start), min(tokens, count - start)
            if first < last:
                parts.append(
                    (start + first, codes[first:last], words[bounds[first] : bounds[last]].tobytes())
                )
                end = start + last
        return parts
