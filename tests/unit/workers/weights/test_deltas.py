"""Chunks as what differs from an older one: exact, never larger than they are worth, and never trusted."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import WeightsError
from workers.weights import deltas
from workers.weights.deltas import DeltaCache, Pair, decode, encode


def weights(size, *, seed=0):
    """Bytes of bfloat16 as they are in models."""
    normal = np.random.default_rng(seed).standard_normal(-(-size // 2)).astype("<f4")
    return (normal.view("<u4") >> 16).astype("<u2").tobytes()[:size]


def changed(chunk, share, *, seed=1):
    words = np.frombuffer(chunk, dtype="<u2").copy()
    words[np.random.default_rng(seed).random(len(words)) < share] ^= 3
    return words.tobytes()


@given(
    base=st.binary(min_size=1, max_size=300),
    changes=st.dictionaries(st.integers(0, 299), st.integers(0, 255), max_size=8),
)
def test_a_delta_gives_the_very_bytes(base, changes):
    chunk = bytearray(base)
    for place, value in changes.items():
        if place < len(chunk):
            chunk[place] = value
    made = encode(bytes(chunk), base)
    assert made is None or bytes(decode(made, base)) == chunk


@pytest.mark.parametrize(("share", "most"), [(0.0, 0.001), (0.01, 0.02), (0.1, 0.1)])
def test_its_size_is_that_of_what_changed(share, most):
    base = weights(1 << 20)
    made = encode(changed(base, share), base)
    assert len(made) <= most * len(base)


def test_what_changed_altogether_is_sent_whole():
    assert encode(weights(1 << 16, seed=1), weights(1 << 16, seed=2)) is None


@pytest.mark.parametrize(
    ("delta", "words"),
    [
        (b"no zlib", "cannot be unpacked"),
        (zlib.compress(b"12345"), "a size that no delta"),
        (zlib.compress(bytes(10_000_000)), "a size that no delta"),
        (zlib.compress((500).to_bytes(4, "little") + b"\1\0"), "changes word"),
        (zlib.compress(b"\xff" * 6), "changes word"),
        (encode(changed(weights(1000), 0.1), weights(1000))[:-3], "a size that no delta"),
    ],
)
def test_what_is_no_delta_of_this_base_is_refused(delta, words):
    with pytest.raises(WeightsError, match=words):
        decode(delta, weights(1000))


def test_each_is_made_once_and_nothing_is_kept_of_a_version_that_is_gone():
    cache, base = DeltaCache(), weights(1000)
    made = cache.make(Pair(4, 3), 0, changed(base, 0.05), base)
    assert cache.find(Pair(4, 3), 0) is made
    assert cache.find(Pair(4, 2), 0) is None
    cache.forget(3)
    assert cache.find(Pair(4, 3), 0) is None


def test_it_is_not_tried_for_ever_where_nothing_is_saved():
    cache = DeltaCache()
    for index in range(deltas.HOPELESS):
        assert cache.is_worth_trying(Pair(1, 0))
        cache.make(Pair(1, 0), index, weights(1000, seed=index), weights(1000, seed=99))
    assert not cache.is_worth_trying(Pair(1, 0))
    assert cache.is_worth_trying(Pair(2, 1))


def test_the_oldest_go_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(deltas, "MAX_CACHED_BYTES", 100)
    cache = DeltaCache()
    for index in range(3):
        cache.keep(Pair(1, 0), index, bytes(40))
    assert [cache.find(Pair(1, 0), index) is not None for index in range(3)] == [False, True, True]
