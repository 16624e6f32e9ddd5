"""What readers wait for is bounded, by reader: nobody's greed costs memory, or another its turn."""

import pytest

from workers.weights.channel import CHUNK, HEADER, Orders, Word
from workers.weights.exchange import MOST_WINDOWS, WeightsExchange
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
