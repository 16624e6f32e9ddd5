"""Words that a worker keeps for the next controller."""

import numpy as np
import pytest

from protocol.errors import RemoteError
from protocol.messages import Delta, Generated, GenerationFailed, InstanceStatus, Keep
from workers.rollout.unacknowledged import Unacknowledged


def said(*deltas: tuple[Delta, list[int]]):
    tokens = [token for _, sampled in deltas for token in sampled]
    frames = np.asarray(tokens, "<i4").tobytes(), np.asarray([-float(t) for t in tokens], "<f4").tobytes()
    return Generated.of(tuple(delta for delta, _ in deltas)), frames


FIRST = said((Delta(0, 0, 1, 2, 2, 5, ""), [10, 11]), (Delta(0, 1, 1, 0, 1, 5, "stop"), [20]))
SECOND = said((Delta(0, 0, 1, 4, 1, 6, "length"), [12]), (Delta(7, 0, 3, 0, 2, 6, ""), [30, 31]))


def held() -> Unacknowledged:
    unacknowledged = Unacknowledged()
    unacknowledged.cut("first", [FIRST, (InstanceStatus(1, 5, 1, 0, 0, 0, 0, 0.0, 0, 0.0, 0, 0, ()), ())])
    unacknowledged.add(*SECOND)
    return unacknowledged


def test_it_tells_who_it_was_and_the_first_token_that_it_still_has_of_each_attempt():
    unacknowledged = held()
    unacknowledged.cut("second", [])
    holding = unacknowledged.holding(6, {(7, 0, 3): 2, (8, 0, 1): 9})
    assert holding.formers == ("first", "second")
    assert holding.policy_version == 6
    assert dict.fromkeys(holding.attempts) == dict.fromkeys(
        [(7, 0, 3, 0), (8, 0, 1, 9), (0, 0, 1, 2), (0, 1, 1, 0)]
    )


def test_it_hands_over_what_is_wanted_from_the_token_asked_for_each_with_its_own_bytes():
    unacknowledged = held()
    assert unacknowledged.release(Keep(((0, 0, 1, 4), (0, 1, 1, 0)))) == [
        said((Delta(0, 1, 1, 0, 1, 5, "stop"), [20])),
        said((Delta(0, 0, 1, 4, 1, 6, "length"), [12])),
    ]
    assert not unacknowledged.is_pending
    assert unacknowledged.release(Keep(((0, 0, 1, 0),))) == []


def test_a_failure_is_told_only_of_an_attempt_that_is_wanted():
    unacknowledged = Unacknowledged()
    failures = [(GenerationFailed(group, 0, 1, "no room"), ()) for group in (1, 2)]
    unacknowledged.cut("first", failures)
    assert unacknowledged.holding(0, {}).attempts == ((1, 0, 1, 0), (2, 0, 1, 0))
    assert unacknowledged.release(Keep(((2, 0, 1, 0),))) == failures[1:]


def test_another_process_finds_in_them_what_this_one_kept():
    unacknowledged, version = Unacknowledged.from_bytes(held().to_bytes(6))
    assert version == 6
    assert unacknowledged.holding(6, {}) == held().holding(6, {})
    wanted = Keep(((0, 0, 1, 4), (0, 1, 1, 0)))
    assert unacknowledged.release(wanted) == held().release(wanted)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: b"[]", lambda data: data[:1] + b"\x93"]
)
def test_words_that_are_cut_off_or_of_something_else_are_refused(damage):
    with pytest.raises(RemoteError):
        Unacknowledged.from_bytes(damage(held().to_bytes(6)))
