"""Kept sets: the tokens that sampling left to draw a token from (top-k, top-p, min-p), exact and short.

A kept set is a code and int32 words. Code 0: every token, no words. Code n below BITS: the words are the n
ids that were kept. Code -n: the words are the n ids that were cut off. Code BITS + n: n words of bits, the
lowest first, set where an id was kept.

Invariant: the set itself is sent, never a threshold, which would give another set under other weights or
another rounding. The shortest of the three forms is taken, so a set costs at most an eighth of a byte per
token of the vocabulary.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BIAS = (
    "Trained over the whole vocabulary, importance weights would be too small: their mean was 0.911 at top_p "
    "0.9 and 0.765 at top_k 5 with equal weights on both sides, where it has to be 1."
)
"""What follows from sampling that the trainer does not know of."""
BITS = 1 << 30
WORD_BITS = 32
Ids = NDArray[np.signedinteger[Any]]  # Any: integers of every width


class KeptSet(NamedTuple):
    """The kept set of one sampled token."""

    code: int
    words: bytes

    @classmethod
    def of(cls, ids: Ids, vocabulary: int) -> "KeptSet":
        """The kept set of these ids, ascending, of a vocabulary of this size. Raises: ValueError if empty."""
        if not len(ids):
            raise ValueError("A token was drawn from none at all; expected at least itself.")
        cut, bits = vocabulary - len(ids), -(-vocabulary // WORD_BITS)
        if not cut:
            return EVERYTHING
        if len(ids) <= min(cut, bits):
            return cls(len(ids), ids.astype("<i4").tobytes())
        is_kept_V = np.zeros(bits * WORD_BITS, dtype=bool)
        is_kept_V[ids] = True
        if cut <= bits:
            return cls.without(np.flatnonzero(~is_kept_V[:vocabulary]))
        return cls(BITS + bits, np.packbits(is_kept_V, bitorder="little").tobytes())

    @classmethod
    def without(cls, ids: Ids) -> "KeptSet":
        """The kept set of all tokens but these few."""
        return cls(-len(ids), ids.astype("<i4").tobytes())


EVERYTHING = KeptSet(0, b"")


def word_counts(codes_N: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many words belong to each code."""
    wide_N = codes_N.astype(np.int64)
    return np.where(wide_N < 0, -wide_N, wide_N & (BITS - 1))


def problem(
    codes: bytes, words: bytes, *, tokens: bytes, parts: list[tuple[int, int]], vocabulary: int | None
) -> str | None:
    """What is wrong with the kept sets of several stretches of tokens; None: nothing.

    `tokens`: those that were drawn, none negative. `parts`: of each stretch its tokens and its words.
    `vocabulary`: ids are below it; None: any number.
    """
    codes_N = np.frombuffer(codes, dtype="<i4")
    counts_N, ids = word_counts(codes_N), np.frombuffer(words, dtype="<i4")
    begin = 0
    for count, size in parts:
        if (told := int(counts_N[begin : begin + count].sum())) != size:
            return f"kept sets of {told} words where its counts say {size}"
        begin += count
    is_bits_N = codes_N >= BITS
    longest = int(counts_N[is_bits_N].max()) if is_bits_N.any() else 0
    if vocabulary is not None and longest > -(-vocabulary // WORD_BITS):
        return f"a kept set of {longest} words of bits; the model has {vocabulary} tokens"
    listed = ids[np.repeat(~is_bits_N, counts_N)]
    if len(listed) and (listed.min() < 0 or (vocabulary is not None and listed.max() >= vocabulary)):
        limit = f"the model has {vocabulary} tokens" if vocabulary is not None else "none is negative"
        return f"kept sets with ids from {listed.min()} to {listed.max()}; {limit}"
    tokens_N = np.frombuffer(tokens, dtype="<i4")
    if len(strays := tokens_N[~_holds_its_own(tokens_N, codes_N, counts_N, ids)]):
        return f"a kept set without the token {strays[0]} that was drawn from it"
    return None


def _holds_its_own(
    tokens_N: NDArray[np.int32],
    codes_N: NDArray[np.int32],
    counts_N: NDArray[np.int64],
    words_W: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Whether each kept set has the token that was drawn: without it, the token's logprob would be -inf."""
    ends_N = np.cumsum(counts_N)
    own = np.flatnonzero(words_W == np.repeat(tokens_N, counts_N))
    is_named_N = np.zeros(len(codes_N), dtype=np.bool_)
    is_named_N[np.searchsorted(ends_N, own, side="right")] = True
    places_N = tokens_N // WORD_BITS
    is_there_N = (codes_N >= BITS) & (places_N < counts_N)
    bits_N = np.zeros(len(codes_N), dtype=np.bool_)
    there = np.flatnonzero(is_there_N)
    bits_N[there] = (words_W[(ends_N - counts_N + places_N)[there]] >> (tokens_N[there] % WORD_BITS)) & 1
    return np.where(codes_N >= BITS, bits_N, (codes_N == 0) | (is_named_N == (codes_N > 0)))
