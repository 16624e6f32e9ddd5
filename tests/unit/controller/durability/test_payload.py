"""Progress is kept as one record per report, and whatever becomes of it, the same tokens are found again."""

import random
import sqlite3

import pytest

from controller.durability.store import Store
from protocol.errors import LocalError, RunError
from protocol.messages import Delta, Generated, Piece, PromptsEncoded, Score, ScoreItem, Segment
from tests.unit.controller.durability.test_store import floats, generated, ints

GROUPS, MEMBERS = 9, 3  # no group comes again once it was dropped


def rows(store: Store, table: str = "chunks") -> int:
    return store.database.execute(f"SELECT count(*) FROM {table} WHERE 1").fetchone()[0]


def with_groups(path, *groups: int, cache_bytes: int = 1 << 20) -> Store:
    store = Store(path, cache_bytes=cache_bytes)
    with store.transaction():
        for group in groups:
            store.put_row(group, b"{}")
    return store


def tokens(store: Store, group: int, member: int, count: int) -> list[int]:
    data = bytes(store._payload.piece(Piece("tokens", group, member, 0, count)))
    assert bytes(store._payload.piece(Piece("logprobs", group, member, 0, count))) == floats(
        *(-token / 100 for token in memoryview(data).cast("i"))
    )
    return list(memoryview(data).cast("i"))


def score(store: Store, group: int, counts: list[int]) -> None:
    items = tuple(ScoreItem(m, "stop", (Segment(0, 0, count),)) for m, count in enumerate(counts))
    store.fetch(Score(group, 0, items))
    with store.transaction():
        store.settle()


def test_a_report_of_many_responses_is_one_record_and_goes_with_the_last_group_that_needs_it(tmp_path):
    store = with_groups(tmp_path / "run.db", 0, 1)
    with store.transaction():
        for start in range(3):
            deltas = [Delta(group, member, 0, start, 1, 0, "") for group in (0, 1) for member in (0, 1)]
            store.put_frames(*generated(*deltas, first_token=10 * start))
        store.put_frames(*generated(Delta(1, 2, 0, 0, 1, 0, ""), first_token=50))
    assert rows(store) == 4
    with store.transaction():
        store.drop([0])
    assert rows(store) == 4
    assert [tokens(store, 1, member, count) for member, count in ((0, 3), (1, 3), (2, 1))] == [
        [2, 12, 22], [3, 13, 23], [50],
    ]  # fmt: skip
    with store.transaction():
        store.drop([1])
    assert rows(store) == 0


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["cached", "from the file"])
def test_a_group_that_was_scored_is_written_whole_and_what_still_comes_is_added(tmp_path, cache_bytes):
    store = with_groups(tmp_path / "run.db", 0, 1, cache_bytes=cache_bytes)
    with store.transaction():
        store.put_frames(PromptsEncoded(((0, 1), (1, 1)), ()), (ints(1), ints(1)))
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 0, ""), Delta(1, 0, 0, 0, 2, 0, ""), first_token=5))
        store.put_frames(*generated(Delta(0, 0, 0, 2, 1, 0, "stop"), first_token=9))
    score(store, 0, [3])
    assert (rows(store), rows(store, "payload")) == (2, 6)  # of one worker, and group 1 needs the first
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 3, 1, 0, "stop"), first_token=40))
    assert tokens(store, 0, 0, 4) == [5, 6, 9, 40]
    store.close()
    store = Store(tmp_path / "run.db", cache_bytes=cache_bytes)
    score(store, 0, [4])
    assert (rows(store), rows(store, "payload")) == (1, 6)
    assert tokens(store, 0, 0, 4) == [5, 6, 9, 40]
    assert tokens(store, 1, 0, 2) == [7, 8]


def test_a_report_about_nothing_that_is_kept_leaves_no_record():
    store = with_groups(":memory:", 0)
    with store.transaction():
        store.put_frames(*generated(Delta(7, 0, 0, 0, 2, 0, "")))
        store.put_frames(Generated.of(()), (b"", b""))
        store.put_frames(*generated(Delta(0, 0, 0, 0, 0, 0, "interrupt")))
    assert rows(store) == 0


def test_what_nobody_needs_after_a_restart_is_deleted(tmp_path):
    store = with_groups(tmp_path / "run.db", 0, 1)
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 0, "")))
        store.put_frames(*generated(Delta(1, 0, 0, 0, 2, 0, "")))
        store.database.execute("DELETE FROM payload WHERE group_id = 1")
    store.close()
    store = Store(tmp_path / "run.db")
    with store.transaction():
        assert store.keep_only([0]) == {0: b"{}"}
    assert rows(store) == 1
    assert tokens(store, 0, 0, 2) == [0, 1]


def test_a_record_whose_places_have_changed_is_damage_and_no_bug_of_ours(tmp_path):
    store = with_groups(tmp_path / "run.db", 0)
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 0, "")))
    store.close()
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("UPDATE chunks SET places = x'9591049100910091009102'")
    db.close()
    with pytest.raises(RunError, match="record 1 of its responses"):
        tokens(Store(tmp_path / "run.db"), 0, 0, 2)


class Model:
    """What is to be found, by brute force: the longest response of each attempt without a hole."""

    def __init__(self) -> None:
        self.responses: dict[tuple[int, int], list[int]] = {}
        self.there: set[int] = set()
        self.gone: set[int] = set()

    def copy(self) -> "Model":
        made = Model()
        made.responses = {key: list(value) for key, value in self.responses.items()}
        made.there, made.gone = set(self.there), set(self.gone)
        return made


def one_step(store: Store, model: Model, rng: random.Random, token: int) -> Model:
    """Something happens, inside a transaction that may fail; what is to be found after it."""
    after = model.copy()
    fails = rng.random() < 0.15
    try:
        with store.transaction():
            for group in rng.sample(range(GROUPS), 2):
                if group not in after.there | after.gone and rng.random() < 0.5:
                    store.put_row(group, b"{}")
                    after.there.add(group)
            deltas, source = [], rng.randrange(2)
            for group, member in {(rng.randrange(GROUPS), rng.randrange(MEMBERS)) for _ in range(9)}:
                if (group + member) % 2 != source:  # an attempt is one worker's
                    continue
                had = len(after.responses.get((group, member), ()))
                again = had and rng.random() < 0.2  # said a second time
                start, count = (0, had) if again else (had, rng.randrange(4))
                deltas.append(Delta(group, member, 0, start, count, 0, rng.choice(("", "", "", "stop"))))
            message, frames = generated(*deltas, first_token=token)
            store.put_frames(message, frames, f"worker {source}")
            for delta in deltas:
                if delta.group in after.there and delta.start == len(after.responses.get(delta[:2], ())):
                    after.responses.setdefault(delta[:2], []).extend(range(token, token + delta.count))
                token += delta.count
            if rng.random() < 0.15:
                doomed = rng.randrange(GROUPS)
                store.drop([doomed])
                after.there.discard(doomed)
                after.gone.add(doomed)
                after.responses = {key: v for key, v in after.responses.items() if key[0] != doomed}
            store.settle()
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        return model
    return after


def check(store: Store, model: Model) -> None:
    for group in range(GROUPS):
        for member in range(MEMBERS):
            expected = model.responses.get((group, member), [])
            assert tokens(store, group, member, len(expected)) == expected
            with pytest.raises(LocalError):
                tokens(store, group, member, len(expected) + 1)
    if not model.there:
        assert rows(store) == 0


LONG = [pytest.param(seed, marks=pytest.mark.thorough) for seed in range(8, 300)]


@pytest.mark.parametrize("seed", [*range(8), *LONG])
def test_whatever_happens_the_tokens_that_came_first_are_found(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr("controller.durability.payload.MOST_WAITING", rng.choice((3, 30, 1 << 12)))
    cache_bytes, path = rng.choice((0, 5, 1 << 20)), tmp_path / "run.db"
    store, model = Store(path, cache_bytes=cache_bytes), Model()
    for step in range(40):
        model = one_step(store, model, rng, 100 * step)
        for group in range(GROUPS):
            if group in model.there and rng.random() < 0.1:
                counts = [len(model.responses.get((group, member), ())) for member in range(MEMBERS)]
                with store.transaction():
                    store.put_frames(PromptsEncoded(((group, 1),), ()), (ints(1),))
                store.fetch(Score(group, 0, tuple(
                    ScoreItem(m, "stop", (Segment(0, 0, count),)) for m, count in enumerate(counts)
                )))  # fmt: skip
        if rng.random() < 0.1:
            store.close()
            store = Store(path, cache_bytes=cache_bytes)
            with store.transaction():
                store.keep_only(model.there)  # as whoever takes a run up: records of those that are gone go
        if step % 8 == 7:
            check(store, model)
    with store.transaction():
        store.keep_only(())
    assert (rows(store), rows(store, "payload")) == (0, 0)
    payload = store._payload
    assert (payload._chunks, payload._newest._of_group) == ({}, {})
    assert not any(reports.size_bytes for reports in payload._newest._open.values())
    assert (payload._live.size_bytes, payload._cache.size_bytes) == (0, 0)
    assert (payload._live.groups, payload._cache.groups) == ({}, {})


def test_reports_wait_until_they_are_many_or_large(monkeypatch):
    store = with_groups(":memory:", 0)
    monkeypatch.setattr("controller.durability.payload.MOST_WAITING", 3)
    waiting = []
    for start in range(8):
        with store.transaction():
            store.put_frames(*generated(Delta(0, 0, 0, start, 1, 0, ""), first_token=start), "a")
        waiting.append(store._payload._newest.of("a").deltas)
    assert waiting == [1, 2, 3, 0, 1, 2, 3, 0]
    monkeypatch.setattr("controller.durability.payload.MOST_WAITING_BYTES", 15)
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 8, 1, 0, ""), first_token=8), "a")
        store.put_frames(*generated(Delta(0, 0, 0, 9, 1, 0, ""), first_token=9), "a")
    assert store._payload._newest.of("a").deltas == 0
    assert tokens(store, 0, 0, 10) == list(range(10))


def test_what_is_told_again_and_gone_on_with_is_found_whole(tmp_path, monkeypatch):
    store = with_groups(tmp_path / "run.db", 0)
    with store.transaction():
        store.put_frames(PromptsEncoded(((0, 1),), ()), (ints(1),))
    store._payload.piece(Piece("prompt", 0, count=-1))  # as for its Route: it is in memory from here on
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 0, ""), first_token=5), "a")
    assert tokens(store, 0, 0, 2) == [5, 6]
    monkeypatch.setattr("controller.durability.payload.MOST_WAITING", 2)
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 0, ""), first_token=30), "a")
        store.put_frames(*generated(Delta(0, 0, 0, 2, 1, 0, ""), first_token=7), "a")
    assert tokens(store, 0, 0, 3) == [5, 6, 7]


def test_one_report_may_tell_twice_of_a_response_and_an_end_may_come_alone(tmp_path):
    store = with_groups(tmp_path / "run.db", 0, 1)
    twice = (Delta(0, 0, 0, 0, 2, 0, ""), Delta(1, 0, 0, 0, 1, 0, ""), Delta(0, 0, 0, 2, 2, 1, ""))
    with store.transaction():
        store.put_frames(PromptsEncoded(((0, 1), (1, 1)), ()), (ints(1), ints(1)))
        store._payload.piece(Piece("prompt", 0, count=-1))
        store.put_frames(*generated(*twice, first_token=10), "a")
        store.put_frames(*generated(Delta(0, 0, 0, 4, 1, 1, ""), first_token=15), "a")
        store.put_frames(*generated(Delta(0, 0, 0, 5, 1, 1, "stop"), first_token=16), "a")
        store.put_frames(*generated(Delta(1, 0, 0, 1, 1, 0, ""), first_token=17), "b")  # it lives on as b
    assert 0 in store._payload._live.groups, "no part was missed, so it is not read again"
    assert tokens(store, 0, 0, 6) == [10, 11, 13, 14, 15, 16]
    assert tokens(store, 1, 0, 2) == [12, 17]
    with store.transaction():
        store.drop([0])
    assert rows(store) == 4  # those of a worker go with the last group that needs one of them
    with store.transaction():
        store.drop([1])
    assert rows(store) == 0


def test_a_full_cache_forgets_what_was_scored_before_what_goes_on(tmp_path):
    store = with_groups(tmp_path / "run.db", *range(4), cache_bytes=100)
    with store.transaction():
        store.put_frames(PromptsEncoded(tuple((group, 1) for group in range(4)), ()), (ints(1),) * 4)
        for group in range(4):
            store._payload.piece(Piece("prompt", group, count=-1))  # as for its Route
        deltas = [Delta(group, 0, 0, 0, 10, 0, "stop") for group in range(4)]
        store.put_frames(*generated(*deltas))
    assert set(store._payload._live.groups) == {0, 1, 2, 3}  # 320 bytes and more
    for group in range(3):
        score(store, group, [10])
    assert set(store._payload._live.groups) == {3}
    assert len(store._payload._cache.groups) == 1
    assert [tokens(store, group, 0, 10)[0] for group in range(4)] == [0, 10, 20, 30]
