"""The store gives a trainer the kept sets of just the tokens that count."""

import numpy as np
import pytest

from controller.durability.store import Store
from protocol.errors import RunError
from protocol.kept_sets import KeptSet
from protocol.messages import Delta, Generated, PromptsEncoded, Score, ScoreItem, Segment, Train, TrainItem

VOCABULARY = 60


def kept(token: int) -> KeptSet:
    """Of a token: as many ids as its number says, 0 for the whole vocabulary."""
    return KeptSet(token, np.arange(token, dtype="<i4").tobytes())


def said(*deltas: tuple[Delta, list[int]], is_cut: bool = True):
    tokens = [token for _, sampled in deltas for token in sampled]
    sets = [[kept(token) for token in sampled] for _, sampled in deltas]
    frames = [np.array(tokens, "<i4").tobytes(), np.zeros(len(tokens), "<f4").tobytes()]
    if is_cut:
        frames.append(np.array([one.code for some in sets for one in some], "<i4").tobytes())
        frames.append(b"".join(one.words for some in sets for one in some))
    words = tuple(sum(one.code for one in some) for some in sets) if is_cut else ()
    return Generated.of(tuple(delta for delta, _ in deltas), words), tuple(frames)


def train(*items: tuple[int, int, tuple[Segment, ...]]) -> Train:
    made = tuple(TrainItem(group, member, 1, 0.0, 0.0, "stop", parts) for group, member, parts in items)
    return Train(0, made, is_cut=True)


def asked(store: Store, message: Train) -> tuple[list[int], list[list[int]]]:
    """Codes, and the words of each trajectory."""
    codes, *words = (np.frombuffer(frame, dtype="<i4").tolist() for frame in store.fetch(message)[3:])
    return codes, words


def words_of(*tokens: int) -> list[int]:
    return [word for token in tokens for word in range(token)]


def counts(store: Store) -> tuple[int, int]:
    """Reports, and records of kept sets that stand alone."""
    query = "SELECT (SELECT count(*) FROM chunks), (SELECT count(*) FROM payload WHERE kind = 'kept_codes')"
    return store.database.execute(query).fetchone()


@pytest.fixture(params=[1 << 20, 0], ids=["cached", "from the file"])
def store(tmp_path, request):
    store = Store(tmp_path / "run.db", cache_bytes=request.param)
    with store.transaction():
        for group in (1, 2):
            store.put_row(group, b"{}")
            store.put_frames(PromptsEncoded(((group, 1),), ()), (bytes(4),))
        store.put_frames(*said((Delta(1, 0, 0, 0, 3, 0, ""), [2, 0, 5]), (Delta(2, 0, 0, 0, 1, 0, ""), [1])))
        store.put_frames(*said((Delta(2, 0, 0, 1, 2, 0, ""), [0, 0]), is_cut=False))
        store.put_frames(*said((Delta(1, 0, 0, 3, 2, 1, ""), [1, 4]), (Delta(2, 0, 0, 3, 1, 1, "stop"), [3])))
        store.put_frames(*said((Delta(1, 0, 1, 0, 2, 2, "stop"), [6, 7])))
    yield store
    store.close()


WHOLE = train((1, 0, (Segment(0, 0, 3), Segment(0, 1, 2), Segment(1, 2, 2))), (2, 0, (Segment(0, 0, 4),)))
FOUND = ([2, 0, 5, 1, 4, 6, 7, 1, 0, 0, 3], [words_of(2, 5, 1, 4, 6, 7), words_of(1, 3)])


def test_every_token_comes_with_what_it_was_drawn_from(store):
    assert asked(store, WHOLE) == FOUND


def test_a_response_that_was_cut_short_has_those_of_what_is_left(store):
    assert asked(store, train((1, 0, (Segment(0, 0, 4), Segment(1, 2, 1))))) == (
        [2, 0, 5, 1, 6],
        [words_of(2, 5, 1, 6)],
    )


def test_another_process_reads_the_same_from_the_file(store):
    again = Store(store.path)
    assert asked(again, WHOLE) == FOUND
    again.close()


def test_after_a_resume_only_what_counts_is_left(store):
    with store.transaction():
        store.keep_tokens({(1, 0, 0): 4, (2, 0, 0): 4})
    assert asked(store, train((1, 0, (Segment(0, 0, 4),)))) == ([2, 0, 5, 1], [words_of(2, 5, 1)])
    with store.transaction():  # and what is said of that place now counts
        store.put_frames(*said((Delta(1, 0, 0, 4, 1, 3, ""), [9])))
    assert asked(store, train((1, 0, (Segment(0, 0, 5),)))) == ([2, 0, 5, 1, 9], [words_of(2, 5, 1, 9)])


def test_what_is_said_again_changes_nothing_and_a_dropped_group_leaves_nothing(store):
    with store.transaction():
        store.put_frames(*said((Delta(1, 0, 0, 0, 3, 0, ""), [2, 0, 5])))
    assert asked(store, WHOLE) == FOUND
    with store.transaction():
        store.drop([1, 2])
    assert store.database.execute("SELECT count(*) FROM payload").fetchone() == (0,)


def test_a_report_is_one_record_whatever_it_says(store):
    assert counts(store) == (4, 0)


def test_of_a_group_that_was_scored_they_stay_when_its_reports_go(store):
    for item in WHOLE.items:
        store.fetch(Score(item.group, 0, (ScoreItem(0, "stop", item.segments),)))
    with store.transaction():
        store.settle()
    assert counts(store) == (0, 3)
    assert asked(store, WHOLE) == FOUND
    with store.transaction():  # and what comes still is added
        store.put_frames(*said((Delta(2, 0, 0, 4, 1, 3, ""), [8])))
    assert asked(store, train((2, 0, (Segment(0, 0, 5),)))) == ([1, 0, 0, 3, 8], [words_of(1, 3, 8)])


def test_kept_sets_that_changed_on_the_disk_are_not_trained(store):
    store.database.execute("UPDATE chunks SET kept = zeroblob(length(kept)) WHERE number = 1")
    again = Store(store.path)
    with pytest.raises(RunError, match="has changed since it was written and must not be trained on"):
        asked(again, WHOLE)
    again.close()
