"""What readers wait for is bounded, by reader: nobody's greed costs memory, or another its turn."""

import json
import os
from contextlib import closing

import pytest
import zmq

from protocol.errors import StaleFlowError
from workers.weights import exchange as exchange_module
from workers.weights import manifest
from workers.weights.channel import CHUNK, DELTA, HEADER, Orders, Word, serving_socket
from workers.weights.deltas import HOPELESS, Pair
from workers.weights.exchange import MOST_IN_ALL, MOST_WINDOWS, WeightsExchange
from workers.weights.fetch import Fetch
from workers.weights.manifest import CHUNK_BYTES
from workers.weights.store import VersionStore
from workers.weights.version_file import VersionFile

WINDOW, LIMIT_MS = 3, 300_000
MOST = MOST_WINDOWS * (WINDOW + 1)


@pytest.fixture
def exchange(tmp_path):
    made = WeightsExchange(Orders(
        directory=str(tmp_path / "versions"), bind="tcp://127.0.0.1:*", window_bytes=WINDOW * CHUNK_BYTES,
        key=None, is_writers=False, deltas=False,
    ))  # fmt: skip
    yield made
    made.close()


def test_a_reader_waits_for_some_windows_at_most_and_others_are_not_concerned(exchange):
    for version in range(1, 1000):
        exchange._answer(b"greedy", Word(CHUNK, version, 0))
        exchange._answer(b"greedy", Word(CHUNK, version, 0))  # a word said twice is one
    assert len(exchange._waiting) == MOST
    exchange._answer(b"polite", Word(HEADER, 2000))
    assert exchange._waiting[Word(HEADER, 2000)] == [b"polite"]


def test_who_has_got_something_may_wait_for_something_else(exchange):
    for chunk in range(MOST + 1):
        exchange._answer(b"reader", Word(CHUNK, 1, chunk))
    exchange._answer(b"reader", Word(HEADER, 2))
    assert Word(HEADER, 2) not in exchange._waiting
    exchange._failed[1] = "a test"
    exchange._answer_waiting(Word(CHUNK, 1, 0))
    exchange._answer(b"reader", Word(HEADER, 2))
    assert exchange._waiting[Word(HEADER, 2)] == [b"reader"]
    for word in [*exchange._waiting]:
        exchange._failed[word.policy_version] = "a test"
        exchange._answer_waiting(word)
    assert not exchange._awaited


def test_readers_that_ask_and_go_cost_no_more_than_some_windows_in_all(exchange):
    most = MOST_IN_ALL * (WINDOW + 1)
    for reader in range(most):
        for chunk in range(WINDOW):
            exchange._answer(b"gone %d" % reader, Word(CHUNK, 1, reader * WINDOW + chunk))
    exchange._answer(b"polite", Word(HEADER, 1))
    kept = [reader for readers in exchange._waiting.values() for reader in readers]
    assert len(kept) == exchange._awaited.total() == exchange._awaited_in_all == most
    assert kept[-1] == b"polite"
    exchange._failed[1] = "a test"
    for word in [*exchange._waiting]:
        exchange._answer_waiting(word)
    assert (exchange._awaited, exchange._awaited_in_all) == ({}, 0)


def publish(store, policy_version):
    """A version of one chunk."""
    segment = store.begin(manifest.lay_out(policy_version, {"w": ("F32", (CHUNK_BYTES // 4,))}))
    store.written(segment)
    return store.seal(segment)


@pytest.mark.parametrize("beyond", [1, 2**64 - 1])
def test_asking_beyond_the_end_of_what_comes_in_ends_no_deltas_of_others(exchange, tmp_path, beyond):
    """An empty chunk would count as one that no delta is worth."""
    publish(exchange._store, 0)
    exchange._is_telling_deltas = True
    serving = serving_socket(exchange._context, "tcp://127.0.0.1:*", window=WINDOW, key=None)
    with closing(VersionStore(tmp_path / "theirs")) as theirs, serving as source:
        published = publish(theirs, 1)
        endpoint = source.getsockopt_string(zmq.LAST_ENDPOINT)
        exchange._fetch = Fetch(
            exchange._store_for, 1, published.digest, [endpoint], context=exchange._context, window=WINDOW
        )
        reader, word = source.recv_multipart()
        source.send_multipart([reader, word, bytes(VersionFile.open(theirs.path(1)).header)])
        assert exchange._fetch.connection.socket.poll(LIMIT_MS)
        exchange._fetch.hear()
        for _ in range(HOPELESS):
            exchange._answer(b"reader", Word(DELTA, 1, beyond, 0))
        assert exchange._deltas.is_worth_trying(Pair(1, 0))


def disked(tmp_path, name):
    """An exchange that may go to a disk, on the host of all others."""
    return closing(WeightsExchange(Orders(
        directory=str(tmp_path / name), on_disk=str(tmp_path / "disk"), bind="tcp://127.0.0.1:*",
        window_bytes=CHUNK_BYTES,
    )))  # fmt: skip


def test_versions_are_kept_on_a_disk_where_shared_memory_has_no_room_for_four(tmp_path, monkeypatch):
    shared, disk = tmp_path / "shared", tmp_path / "disk"
    monkeypatch.setattr(exchange_module, "has_room", lambda size_bytes: size_bytes <= 400)
    with disked(tmp_path, "shared") as roomy:
        assert roomy._store_for(100).directory == shared
        publish(roomy._store, 0)
        assert roomy._store_for(101).directory == shared, "a version is there"
    assert not shared.exists()
    with disked(tmp_path, "shared") as cramped:
        assert cramped._store_for(101).directory == disk
        assert not shared.exists()
        with disked(tmp_path, "later") as later:
            later._start_next()
            assert later._store.directory == tmp_path / "later", "nothing is on the disk yet"
            published = publish(cramped._store, 3)
            later._orders.append({"pull": 3, "digest": published.digest, "sources": []})
            later._start_next()
            assert later._store.directory == disk
            assert later._fetch is None, "it is here already"
            assert later._store_for(1).directory == disk
        with disked(tmp_path, "again") as again:
            assert again._store.directory == disk, "it may serve before it pulls"
    assert not disk.exists()


def test_a_disk_that_cannot_be_used_fails_the_pull_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange_module, "has_room", lambda size_bytes: False)
    (tmp_path / "disk").write_text("not a folder")
    with disked(tmp_path, "shared") as exchange, pytest.raises(StaleFlowError, match="cannot be made"):
        exchange._store_for(1)


def test_a_version_that_is_freed_is_not_opened_again_before_its_trainer_removes_it(tmp_path):
    """Its storage could not be used again, and would be held as long as the exchange lives."""
    folder = tmp_path / "versions"
    orders = Orders(
        directory=str(folder), bind="tcp://127.0.0.1:*", window_bytes=CHUNK_BYTES, is_writers=True
    )
    with closing(VersionStore(folder)) as trainers, closing(WeightsExchange(orders)) as exchange:
        publish(trainers, 0)
        inode = os.stat(publish(trainers, 1).location).st_ino
        publish(trainers, 2)
        exchange._answer(b"reader", Word(CHUNK, 1, 0))
        exchange._answer(b"reader", Word(DELTA, 2, 0, 1))
        order, told = os.pipe()
        os.write(told, json.dumps({"retire": 1, "free": [1]}).encode() + b"\n")
        assert exchange._take_orders(order)
        exchange._answer(b"reader", Word(CHUNK, 1, 0))  # of a pull that nobody waits for any more
        exchange._answer(b"reader", Word(DELTA, 2, 0, 1))
        trainers.retire(1)
        assert os.stat(publish(trainers, 3).location).st_ino == inode, "the storage is used again"
        for end in (order, told):
            os.close(end)
