"""The core that follows a run is shown where it stands, if that is near the end and it was there before."""

import pytest

from controller.durability.recording import Recording
from controller.view.past.newest import NEAR_S, NewestCore
from controller.view.past.replayed_core import StillReading
from tests.support.shown_run import recorded

FIRST, AT_ONCE = 60, 20  # events


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("newest") / "run")


def until(path, number, *, until_s=None):
    """The journal when it ended there."""
    recording = Recording(path)
    *_, (now, _) = recording.mark(number)
    recording.last, recording.until_s = number, now if until_s is None else until_s
    return recording


def late_after(events):
    left = iter(range(events - 1, -1, -1))
    return lambda: next(left) == 0


def never():
    return False


@pytest.fixture
def newest(path):
    return NewestCore(path, is_live=lambda: True)


def test_once_at_the_end_it_is_of_use_a_little_before_it(path, newest):
    replayed, instant = newest.go(until(path, FIRST), never)
    assert instant.number == FIRST
    later = until(path, 2 * FIRST)
    assert not newest.is_at_end(later)
    with pytest.raises(StillReading):
        newest.go(later, late_after(AT_ONCE))
    found = newest.near(later)
    assert found is not None
    assert found == (replayed, replayed.here)
    assert found[1].number == FIRST + AT_ONCE
    assert found[1].turn is not None, "what the event gave is known"
    assert newest.go(later, never)[1].number == 2 * FIRST
    assert newest.is_at_end(later)


def test_one_that_was_never_at_the_end_is_no_newest_and_neither_is_one_far_behind(path, newest):
    journal = until(path, FIRST)
    assert newest.near(journal) is None
    with pytest.raises(StillReading):
        newest.go(journal, late_after(AT_ONCE))
    assert newest.near(journal) is None
    _, instant = newest.go(journal, never)
    assert newest.near(until(path, 2 * FIRST, until_s=instant.now + NEAR_S + 1)) is None
    assert newest.near(until(path, 2 * FIRST, until_s=instant.now + NEAR_S - 1)) is not None
