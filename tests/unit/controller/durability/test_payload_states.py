"""States of environments in the store: the newest of each episode, as long as its group is here."""

import pytest

from controller.durability.store import Store
from protocol.errors import LocalError
from protocol.messages import Ask, Begin, SavedTrajectory

ROW, TOKEN = b'{"prompt": "1"}', bytes(4)
KNOWN = (SavedTrajectory(1, 2, 3, True),)


@pytest.fixture
def store() -> Store:
    """Two episodes have saved, one of them twice."""
    payload = Store(":memory:", cache_bytes=1 << 20)
    with payload.transaction():
        payload.put_row(7, ROW)
        put(payload, 0, b"old")
        put(payload, 0, b"new", number=1)
        put(payload, 1, b"other", trial=2)
    return payload


def put(store, episode, state, *, trial=1, number=0):
    """An ask comes with a state."""
    ask = Ask(7, episode, trial, number, episode, 2 + number, 0, 1, "d", 5, saved=len(state))
    store.put_frames(ask, (TOKEN, state))


def fetch(store, episode, trial=1):
    """The frames with which it is begun again."""
    return store.fetch(Begin(7, episode, trial, 9, 1, 2, 1, KNOWN))


def test_an_episode_is_begun_with_the_state_that_it_saved_last(store):
    assert fetch(store, 0) == (ROW, b"new")
    assert fetch(store, 1, trial=2) == (ROW, b"other")


def test_what_comes_late_of_an_older_trial_changes_nothing(store):
    with store.transaction():
        put(store, 1, b"late", trial=1)
    assert fetch(store, 1, trial=2) == (ROW, b"other")


def test_a_state_goes_with_its_group(store):
    with store.transaction():
        store.drop([7])
        put(store, 0, b"late")
    with pytest.raises(LocalError):
        fetch(store, 0)


def test_tokens_are_as_without(store):
    with store.transaction():
        store.keep_tokens({(7, 0, 2): 1})
    assert fetch(store, 0) == (ROW, b"new")
