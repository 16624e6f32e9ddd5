"""Payload and history are kept together, found again, and bounded in memory."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from controller.core.events import Received, Started, StopRequested, Tick
from controller.durability.recording import Recording
from controller.durability.store import Store
from protocol.errors import LocalError, OtherRelease, RunError
from protocol.messages import (
    Beat,
    Delta,
    Encode,
    Generated,
    PromptsEncoded,
    Route,
    Score,
    ScoreItem,
    Segment,
    Train,
    TrainItem,
)

Frames = tuple[bytes, ...]


def ints(*values: int) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


def floats(*values: float) -> bytes:
    return np.array(values, dtype="<f4").tobytes()


def generated(*deltas: Delta, first_token: int = 0) -> tuple[Generated, Frames]:
    count = sum(delta.count for delta in deltas)
    tokens = range(first_token, first_token + count)
    return Generated.of(deltas), (ints(*tokens), floats(*(-t / 100 for t in tokens)))


def filled(path: str | Path = ":memory:", *, cache_bytes: int = 1 << 20) -> Store:
    """Group 0: a prompt of 3; member 0 in two attempts and three deltas, member 1 in one."""
    store = Store(path, cache_bytes=cache_bytes)
    with store.transaction():
        for group in (0, 1):
            store.put_row(group, b'{"prompt":"%d"}' % group)
        store.put_frames(PromptsEncoded(((0, 3), (1, 2)), ()), (ints(1, 2, 3), ints(8, 9)))
        first = (Delta(0, 0, 0, 0, 2, 5, ""), Delta(0, 1, 0, 0, 3, 5, "stop"))
        store.put_frames(*generated(*first, first_token=10))
        store.put_frames(*generated(Delta(0, 0, 0, 2, 4, 5, "interrupt"), first_token=20))
        store.put_frames(*generated(Delta(0, 0, 1, 0, 2, 6, "stop"), first_token=30))
    return store


ROUTE = Route(0, 0, 2, seed=1, max_new_tokens=9, segments=(Segment(0, 5, 5), Segment(1, 6, 2)))
ROUTE_FRAMES = (ints(1, 2, 3), ints(10, 11, 20, 21, 22, 30, 31))


@pytest.mark.parametrize("cache_bytes", [1 << 20, 0], ids=["cached", "from the file"])
def test_a_response_is_the_accepted_part_of_each_attempt(cache_bytes: int) -> None:
    assert filled(cache_bytes=cache_bytes).fetch(ROUTE) == ROUTE_FRAMES


def test_a_batch_concatenates_prompts_tokens_and_logprobs_without_padding() -> None:
    items = (
        TrainItem(0, 0, 3, 1.0, 0.5, "stop", (Segment(1, 6, 2),)),
        TrainItem(0, 1, 3, 0.0, -0.5, "stop", (Segment(0, 5, 3),)),
    )
    prompts, tokens, logprobs = filled().fetch(Train(7, items))
    assert prompts == ints(1, 2, 3) * 2
    assert tokens == ints(30, 31, 12, 13, 14)
    assert np.allclose(np.frombuffer(logprobs, "<f4"), np.frombuffer(tokens, "<i4") / -100)


def test_rows_and_prompts_travel_whole() -> None:
    store = filled()
    assert store.fetch(Encode((1, 0))) == (b'{"prompt":"1"}', b'{"prompt":"0"}')
    score = Score(1, 0, (ScoreItem(0, "stop", ()),))
    assert store.fetch(score) == (b'{"prompt":"1"}', ints(8, 9), b"")
    assert store.fetch(Beat()) == ()


def test_the_first_bytes_of_a_place_stay() -> None:
    store = filled()
    with store.transaction():
        store.put_frames(*generated(Delta(0, 0, 1, 0, 2, 6, "stop"), first_token=70))
    assert store.fetch(ROUTE) == ROUTE_FRAMES


def test_a_prompt_that_is_encoded_again_is_what_it_is_encoded_to_last(tmp_path: Path) -> None:
    store = filled(tmp_path / "run.db")
    assert store.fetch(ROUTE) == ROUTE_FRAMES
    with store.transaction():  # the first answer did not count
        store.put_frames(PromptsEncoded(((0, 4),), ()), (ints(7, 7, 7, 7),))
    assert store.fetch(ROUTE) == (ints(7, 7, 7, 7), ROUTE_FRAMES[1])
    store.close()
    assert Store(tmp_path / "run.db").fetch(ROUTE) == (ints(7, 7, 7, 7), ROUTE_FRAMES[1])


def test_a_missing_piece_is_named() -> None:
    store = filled()
    late = Route(0, 1, 1, seed=1, max_new_tokens=9, segments=(Segment(0, 5, 4),))
    with pytest.raises(
        LocalError, match=r"12 bytes of Piece\(kind='tokens', group=0, member=1, attempt=0, count=4\)"
    ):
        store.fetch(late)
    with pytest.raises(LocalError, match="kind='row', group=5"):
        store.fetch(Encode((5,)))


def test_a_hole_between_deltas_is_missing_not_skipped() -> None:
    store = filled()
    with store.transaction():
        store.put_frames(*generated(Delta(1, 0, 0, 0, 2, 5, "")))
        store.put_frames(*generated(Delta(1, 0, 0, 3, 2, 5, "")))
    with pytest.raises(LocalError):
        store.fetch(Route(1, 0, 1, seed=1, max_new_tokens=9, segments=(Segment(0, 5, 4),)))


def test_what_a_refused_word_wrote_over_counted_tokens_hides_none_of_them() -> None:
    store = filled()
    with store.transaction():  # six tokens of this attempt count; then it is said to go on behind the first
        store.put_frames(*generated(Delta(0, 0, 0, 1, 4, 5, "stop"), first_token=90))
    assert store.fetch(ROUTE) == ROUTE_FRAMES
    assert store.fetch(Route(0, 0, 3, seed=1, max_new_tokens=9, segments=(Segment(0, 5, 6),)))[1] == ints(
        10, 11, 20, 21, 22, 23
    )


def test_dropped_groups_are_gone_and_late_frames_for_them_are_not_kept(tmp_path: Path) -> None:
    store = filled(tmp_path / "run.db")
    with store.transaction():
        store.drop((0,))
        store.put_frames(*generated(Delta(0, 0, 0, 0, 2, 5, "")))
    with pytest.raises(LocalError):
        store.fetch(ROUTE)
    store.close()
    store = Store(tmp_path / "run.db")
    with pytest.raises(LocalError):
        store.fetch(ROUTE)
    assert store.fetch(Encode((1,))) == (b'{"prompt":"1"}',)


def test_only_what_is_still_needed_is_kept_after_a_restart(tmp_path: Path) -> None:
    store = filled(tmp_path / "run.db")
    with store.transaction():
        assert store.keep_only([0, 7]) == {0: b'{"prompt":"0"}'}
    assert store.fetch(ROUTE) == ROUTE_FRAMES
    with pytest.raises(LocalError):
        store.fetch(Encode((1,)))


def test_a_small_cache_changes_nothing_but_speed() -> None:
    store = Store(":memory:", cache_bytes=64)
    with store.transaction():
        for group in range(20):
            store.put_row(group, b"{}")
            store.put_frames(PromptsEncoded(((group, 4),), ()), (ints(group, 1, 2, 3),))
        for start in range(4):
            for group in range(20):
                store.put_frames(*generated(Delta(group, 0, 0, start, 1, 0, ""), first_token=group))
    for group in range(20):
        route = Route(group, 0, 1, seed=1, max_new_tokens=9, segments=(Segment(0, 0, 4),))
        assert store.fetch(route) == (ints(group, 1, 2, 3), ints(*[group] * 4))


def test_history_and_payload_survive_the_process(tmp_path: Path) -> None:
    history = [Started(), Received("01", Beat()), Tick(), StopRequested("enough")]
    store = filled(tmp_path / "run.db")
    with store.transaction():
        for second, event in enumerate(history):
            store.append_events(second / 2, [(event, False)])
        store.put_fact("config", "{}")
    store.close()
    store = Store(tmp_path / "run.db", durability="power")
    assert list(store.events()) == [(second / 2, event) for second, event in enumerate(history)]
    assert store.facts() == {"config": "{}"}
    assert store.fetch(ROUTE) == ROUTE_FRAMES


def test_a_transaction_that_fails_leaves_nothing() -> None:
    store = filled()

    def fail() -> None:
        with store.transaction():
            store.append_events(1.0, [(Tick(), False)])
            store.put_row(2, b"{}")
            store.put_frames(*generated(Delta(0, 0, 1, 2, 2, 6, ""), first_token=90))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(store.events()) == []
    assert store.fetch(ROUTE) == ROUTE_FRAMES
    with pytest.raises(LocalError):
        store.fetch(Encode((2,)))
    with pytest.raises(LocalError):
        store.fetch(Route(0, 0, 2, seed=1, max_new_tokens=9, segments=(Segment(1, 6, 4),)))


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "run.db")
    with store.transaction():
        store.append_events(0.0, [(Started(), False)])
        store._db.execute("INSERT INTO events (now, event) VALUES (1.0, x'93')")
    with pytest.raises(RunError, match=r"Event 2 of .*run.db cannot be replayed"):
        list(store.events())


def test_a_file_that_is_no_database_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(b"x" * 4096)
    with pytest.raises(RunError, match="not a database"):
        Store(tmp_path / "run.db")


@pytest.mark.parametrize(
    "made",
    [
        "VIEW more AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "TRIGGER more AFTER INSERT ON events BEGIN DELETE FROM events; END",
    ],
)
def test_a_file_that_would_run_what_somebody_has_put_into_it_is_refused(tmp_path: Path, made: str) -> None:
    Store(tmp_path / "run.db").close()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.execute(f"CREATE {made}")
    with pytest.raises(OtherRelease, match=f"has the {made.split()[0].lower()} more; expected tables alone"):
        Store(tmp_path / "run.db")
    with pytest.raises(OtherRelease, match="expected tables alone"):
        Recording(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"x" * 4096),
        lambda path: sqlite3.connect(path).executescript("CREATE TABLE bookmarks (url)").connection.close(),
    ],
    ids=["no database", "of another program"],
)
def test_a_file_that_is_refused_is_open_no_more(tmp_path, make):
    path = tmp_path / "run.db"
    make(path)
    with pytest.raises(RunError) as raised:
        Store(path)
    assert raised.value.__traceback__ is not None  # which holds what the constructor had
    with os.scandir("/proc/self/fd") as opened:
        targets = [os.readlink(one) for one in opened if os.path.islink(one)]
    assert not [target for target in targets if target.startswith(str(path))]


def test_what_is_dropped_is_not_written_once_more(tmp_path):
    store = Store(tmp_path / "run.db")
    assert store.database.execute("PRAGMA secure_delete").fetchone() == (0,)  # Debian's SQLite has 1
    with store.transaction():
        store.put_row(0, b"x" * (1 << 22))
    store.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with store.transaction():
        store.drop([0])
    log_bytes = (tmp_path / "run.db-wal").stat().st_size
    assert log_bytes < 1 << 17
