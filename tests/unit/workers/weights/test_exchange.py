"""What readers wait for is bounded, by reader: nobody's greed costs memory, or another its turn."""

import pytest

from workers.weights.channel import CHUNK, HEADER, Orders, Word
from workers.weights.exchange import MOST_IN_ALL, MOST_WINDOWS, WeightsExchange
from workers.weights.manifest import CHUNK_BYTES

WINDOW = 3
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
