"""The kept sets of one response in the payload: records of consecutive tokens, joined on demand.

A record is the number of its tokens (int32), their codes, and their words, as protocol/kept_sets.py has them.
Invariant: tokens that no record tells of were drawn from the whole vocabulary, so code 0 stands for them.
"""

import numpy as np

from protocol.kept_sets import word_counts
from protocol.messages import Stretch


def as_record(sets: Stretch, count: int) -> Stretch:
    """What `Generated.kept_sets` gives for a delta of so many tokens, so that it can stand alone."""
    return sets._replace(data=np.int32(count).astype("<i4").tobytes() + sets.data)


class KeptSets:
    """Of one attempt at a response."""

    __slots__ = ("_records", "size_bytes")

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}
        self.size_bytes = 0

    def put(self, record: Stretch) -> None:
        """Take a record; of two at a place the first stays."""
        if record.start not in self._records:
            self._records[record.start] = record.data
            self.size_bytes += len(record.data)

    def codes(self, count: int) -> bytes:
        """Of the first `count` tokens."""
        codes_T = np.zeros(count, dtype="<i4")
        for start, codes_t, _ in self._parts(count):
            codes_T[start : start + len(codes_t)] = codes_t
        return codes_T.tobytes()

    def words(self, count: int) -> bytes:
        """Of the first `count` tokens, in order."""
        return b"".join(words for _, _, words in self._parts(count))

    def record(self, count: int) -> bytes:
        """One for the first `count` tokens; b"" if all were drawn from the whole vocabulary."""
        words = self.words(count)
        head = np.int32(count).astype("<i4").tobytes()
        return head + self.codes(count) + words if words else b""

    def _parts(self, count: int) -> list[tuple[int, np.ndarray, bytes]]:
        """Start, codes and words of what lies below `count`, without holes twice filled."""
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
