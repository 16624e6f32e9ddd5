"""A journal is read again when it may have changed, and of two looks it is known if they tell the same."""

import os
import shutil

import pytest

from controller.durability.recording import Recording
from controller.durability.store import Store
from controller.view.followed_journal import FollowedJournal, goes_on_with
from protocol.errors import RunError
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG, change, cut, shorten


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "run"
    record(path, CONFIG, snapshot_every=80)
    return path


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def test_a_journal_that_cannot_have_grown_is_not_read_again(run):
    states = iter([True, True, False, False])
    journal = FollowedJournal(run, is_live=lambda: next(states))
    looks = [journal.look().recording for _ in range(4)]
    assert looks[0] is not looks[1] is not looks[2], "it went on, and has ended since"
    assert looks[2] is looks[3]


@pytest.mark.parametrize("given", ["run", "run/run.db"])
def test_one_whose_file_was_written_to_is_read_again(run, given):
    journal = FollowedJournal(run.parent / given, is_live=lambda: False)
    first = journal.look().recording
    assert journal.look().recording is first
    store = Store(run / "run.db")
    with store.transaction():  # it lies in the log beside the file
        store.put_fact("told", "once")
    assert journal.look().recording.facts["told"] == "once"
    store.close()
    assert not (run / "run.db-wal").exists()
    second = journal.look().recording
    assert journal.look().recording is second
    os.utime(run / "run.db", (1e9, 1e9))
    assert journal.look().recording is not second


def test_a_look_that_fails_is_none_and_the_next_one_is_held_against_the_last_that_did_not(run, whole):
    journal = FollowedJournal(run, is_live=lambda: False)
    assert journal.look().goes_on
    shutil.rmtree(run)
    for _ in range(2):
        with pytest.raises(RunError, match="There is no run"):
            journal.look()
    record(run, CONFIG, seed=2)
    assert not journal.look().goes_on
    assert journal.look().goes_on


def test_a_history_that_has_grown_is_the_same(run):
    later = Recording(run)
    for number in (100, 81, 1, 0):
        cut(run, number)
        assert goes_on_with(later, Recording(run))


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: cut(run, 99),
        lambda run: change(run, "INSERT INTO skipped VALUES (9, 'a word')"),
        lambda run: change(run, "UPDATE events SET checksum = checksum + 1 WHERE seq = 100"),
        lambda run: change(run, "UPDATE events SET now = now + 1 WHERE seq = 100"),
        lambda run: change(run, "UPDATE facts SET value = value || ' ' WHERE name = 'config'"),
        lambda run: shutil.rmtree(run) or record(run, CONFIG, seed=2),
    ],
    ids=["shorter", "skipped", "event", "second", "config", "run"],
)
def test_another_history_is_told_apart(run, harm):
    cut(run, 100)
    earlier = Recording(run)
    harm(run)
    assert not goes_on_with(Recording(run), earlier)


def test_events_that_the_core_takes_one_by_one_after_it_had_failed_on_them_at_once_are_another_history(run):
    store = Store(run / "run.db")
    events = [event for _, event in store.events()][:3]
    with store.transaction():
        first = store.append_events(99.0, [(events[0], True), (events[1], True), (events[2], False)])
    earlier = Recording(run)
    with store.transaction():
        store.separate(first, first + 2)
    assert not goes_on_with(Recording(run), earlier)
    store.close()


def test_what_was_left_out_behind_the_earlier_look_is_the_later_ones(run):
    later = Recording(run)
    cut(run, 100)
    earlier = Recording(run)
    later.skipped = {101: "a word"}
    assert goes_on_with(later, earlier)


def test_a_journal_that_a_compact_run_has_shortened_goes_on_while_something_known_of_it_is_left(run):
    looks, number = {}, 80
    shutil.copytree(run, run.with_name("copy"))
    for last in (number + 20, number, number - 20):
        cut(run.with_name("copy"), last)
        looks[last] = Recording(run.with_name("copy"))
    shorten(run, number)
    later = Recording(run)
    assert later.pruned == number
    assert [goes_on_with(later, earlier) for earlier in looks.values()] == [True, False, False]
