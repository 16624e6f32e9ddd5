"""Tokens that an environment gave are kept, sent and trained with those that were sampled, in their order."""

import struct

import pytest

from controller.durability.store import Store
from protocol.messages import (
    GIVEN,
    Ask,
    Begin,
    Delta,
    Generated,
    Route,
    Score,
    ScoreItem,
    Segment,
    Train,
    TrainItem,
    Turn,
)

ROW = b'{"question": "1 + 1"}'
SEGMENTS = (Segment(2, GIVEN, 3), Segment(3, 0, 2), Segment(4, 1, 1), Segment(5, GIVEN, 2), Segment(6, 1, 2))


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture(params=[1 << 20, 0], ids=["cached", "from the file"])
def store(request) -> Store:
    """What a run of two turns has left, the first of which was interrupted."""
    payload = Store(":memory:", cache_bytes=request.param)
    with payload.transaction():
        payload.put_row(7, ROW)
        payload.put_frames(Ask(7, 1, 1, 0, 1, 2, 0, 3, "d", 5), (ints(10, 11, 12),))
        payload.put_frames(
            Generated.of((Delta(7, 1, 3, 0, 2, 0, "interrupt"),)), (ints(20, 21), floats(-1, -2))
        )
        payload.put_frames(Generated.of((Delta(7, 1, 4, 0, 1, 1, "stop"),)), (ints(22), floats(-3)))
        payload.put_frames(Ask(7, 1, 1, 1, 1, 5, 6, 2, "e", 5), (ints(13, 14),))
        payload.put_frames(Generated.of((Delta(7, 1, 6, 0, 2, 1, "stop"),)), (ints(23, 24), floats(-4, -5)))
    return payload


def test_a_turn_is_routed_behind_all_that_came_before(store):
    before, turn = store.fetch(Route(7, 1, 7, 0, 5, SEGMENTS, begins=4))
    assert before == ints(10, 11, 12, 20, 21, 22, 13, 14)
    assert turn == ints(23, 24)


def test_an_agent_hears_what_was_sampled_in_its_turn(store):
    assert store.fetch(Turn(7, 1, 1, 0, 1, 4, "stop", SEGMENTS[1:3])) == (
        ints(20, 21, 22),
        floats(-1, -2, -3),
    )
    assert store.fetch(Begin(7, 1, 1, 9, 1, 2)) == (ROW,)


def test_given_tokens_are_trained_as_context_without_logprobs(store):
    item = TrainItem(7, 1, 0, 1.0, 0.5, "stop", SEGMENTS, 1)
    prompts, tokens, logprobs = store.fetch(Train(1, (item,)))
    assert prompts == b""
    assert tokens == ints(10, 11, 12, 20, 21, 22, 13, 14, 23, 24)
    assert logprobs == floats(-1, -2, -3, -4, -5)


def test_a_transcript_is_scored_without_a_prompt(store):
    item = ScoreItem(1, "stop", SEGMENTS)
    row, prompt, tokens = store.fetch(Score(7, 1, (item,)))
    assert (row, prompt) == (ROW, b"")
    assert tokens == ints(10, 11, 12, 20, 21, 22, 13, 14, 23, 24)


def test_what_was_given_first_stays(store):
    with store.transaction():
        store.put_frames(Ask(7, 1, 1, 0, 1, 2, 0, 3, "d", 5), (ints(90, 91, 92),))
    before, _ = store.fetch(Route(7, 1, 7, 0, 5, SEGMENTS[:1], begins=1))
    assert before == ints(10, 11, 12)


def test_a_run_that_goes_back_keeps_given_tokens_as_it_keeps_others(store):
    with store.transaction():
        store.keep_tokens({(7, 1, 2): 3, (7, 1, 3): 2})
    before, turn = store.fetch(Route(7, 1, 4, 0, 5, SEGMENTS[:2], begins=1))
    assert (before, turn) == (ints(10, 11, 12), ints(20, 21))


def test_a_group_that_was_scored_is_settled_with_what_was_given(store):
    with store.transaction():
        store.fetch(Score(7, 1, (ScoreItem(1, "stop", SEGMENTS),)))
        store.settle()
    item = TrainItem(7, 1, 0, 1.0, 0.5, "stop", SEGMENTS, 1)
    assert store.fetch(Train(1, (item,)))[1] == ints(10, 11, 12, 20, 21, 22, 13, 14, 23, 24)
