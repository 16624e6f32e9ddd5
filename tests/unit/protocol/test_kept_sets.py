"""Kept sets: exact, in the shortest of three forms, and looked at before they are believed."""

import numpy as np
import pytest

from protocol.kept_sets import BITS, EVERYTHING, KeptSet, problem, word_counts

VOCABULARY = 100
FORMS = [
    ([7], 1),
    ([1, 2, 99], 3),
    (list(range(100)), 0),
    ([id for id in range(100) if id not in (5, 98)], -2),
    (list(range(0, 100, 2)), BITS + 4),
    (list(range(96, 100)), 4),
    (list(range(60)), BITS + 4),
]


def meaning(kept: KeptSet, vocabulary: int) -> list[int]:
    """The ids, read word by word."""
    words = np.frombuffer(kept.words, dtype="<u4").tolist()
    if kept.code == 0:
        return list(range(vocabulary))
    if kept.code < 0:
        return [id for id in range(vocabulary) if id not in words]
    if kept.code < BITS:
        return words
    return [32 * place + bit for place, word in enumerate(words) for bit in range(32) if word >> bit & 1]


@pytest.mark.parametrize(("ids", "code"), FORMS)
def test_a_set_means_the_same_in_whichever_form_is_the_shortest(ids, code):
    kept = KeptSet.of(np.array(ids), VOCABULARY)
    assert kept.code == code
    assert meaning(kept, VOCABULARY) == ids
    assert word_counts(np.array([kept.code], dtype=np.int32)).tolist() == [len(kept.words) // 4]


def test_nothing_kept_is_refused():
    with pytest.raises(ValueError, match="from none at all"):
        KeptSet.of(np.array([], dtype=np.int64), VOCABULARY)


def asked(
    *sets: KeptSet, words: int | None = None, vocabulary: int | None = VOCABULARY, drawn: int | None = None
):
    codes = np.array([one.code for one in sets], dtype="<i4").tobytes()
    joined = b"".join(one.words for one in sets)
    tokens = [meaning(one, VOCABULARY)[-1] if drawn is None else drawn for one in sets]
    return problem(
        codes, joined, tokens=np.array(tokens, dtype="<i4").tobytes(), vocabulary=vocabulary,
        parts=[(len(sets), words or len(joined) // 4)],
    )  # fmt: skip


def test_what_fits_is_believed():
    assert asked(*(KeptSet.of(np.array(ids), VOCABULARY) for ids, _ in FORMS)) is None
    assert asked(EVERYTHING, EVERYTHING) is None


@pytest.mark.parametrize(
    ("sets", "words", "said"),
    [
        ((KeptSet(1, b"\x64\0\0\0"),), None, "ids from 100 to 100; the model has 100 tokens"),
        ((KeptSet(-1, b"\xff\xff\xff\xff"),), None, "ids from -1 to -1; the model has 100"),
        ((KeptSet.of(np.array([4, 5]), VOCABULARY),), 1, "of 2 words where its counts say 1"),
        ((KeptSet(BITS + 5, b"\xff" * 20),), None, "of 5 words of bits; the model has 100"),
    ],
)
def test_what_does_not_is_told(sets, words, said):
    assert said in asked(*sets, words=words)


@pytest.mark.parametrize(("ids", "code"), FORMS)
def test_a_set_holds_the_token_that_was_drawn_from_it(ids, code):
    kept = KeptSet.of(np.array(ids), VOCABULARY)
    for drawn in range(VOCABULARY):
        wrong = asked(EVERYTHING, kept, kept, drawn=drawn)
        assert wrong == (
            None if drawn in ids else f"a kept set without the token {drawn} that was drawn from it"
        )


def test_a_set_that_holds_nothing_is_refused():
    for kept in (KeptSet(BITS, b""), KeptSet.without(np.arange(VOCABULARY))):
        assert asked(kept, drawn=3) == "a kept set without the token 3 that was drawn from it"


def test_each_stretch_has_just_its_own_words():
    codes, words = np.array([1, 2], dtype="<i4").tobytes(), np.array([3, 4, 5], dtype="<i4").tobytes()
    tokens = np.array([3, 5], dtype="<i4").tobytes()
    assert problem(codes, words, tokens=tokens, parts=[(1, 1), (1, 2)], vocabulary=None) is None
    wrong = problem(codes, words, tokens=tokens, parts=[(1, 2), (1, 1)], vocabulary=None)
    assert wrong is not None
    assert "of 1 words" in wrong
