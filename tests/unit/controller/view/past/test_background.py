"""The pass over a run's history, beside the answers."""

import sqlite3

import pytest

from controller.durability.recording import Recording
from controller.view.past.background import Background
from controller.view.past.replica import Replica
from controller.view.shown_run import ShownRun
from tests.support.shown_run import recorded


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("background") / "run")


def test_it_leaves_keyframes_from_which_any_moment_is_the_true_one(path):
    recording, plain = Recording(path), Replica(Recording(path))
    replica = Replica(recording, spacing=1 << 30)
    background = Background(recording, keep=replica.offer)
    background._spacing = replica.keyframes.spacing = 40
    background.follow(recording)
    background.join()
    assert background.number == recording.last
    assert len(replica.keyframes.numbers) > 3
    for number in (recording.last // 3, recording.last // 2, 7):
        replica.at(number)
        plain.at(number)
        assert replica.image() == plain.image()


def test_a_core_whose_image_takes_long_has_fewer_keyframes(path):
    class Clock:
        now = 0

        def __call__(self):
            self.now += 1
            return self.now

    recording, clock, kept = Recording(path), Clock(), []

    def keep(number, image):
        kept.append(number)
        clock.now += 4  # and one that passes by looking at it: as long as five steps
        return 10

    background = Background(recording, keep=keep, clock=clock)
    background._spacing = 10
    background.follow(recording)
    background.join()
    assert kept == list(range(10, recording.last + 1, 5 * 10))
    assert len(kept) == (recording.last - 10) // 50 + 1 > 2


def test_while_somebody_is_answered_it_pauses(path):
    recording = Recording(path)
    background = Background(recording, keep=lambda number, image: 1 << 30)
    with background.answering():
        background.follow(recording)
        assert background.number == 0
    background.join()
    assert background.number == recording.last


def test_a_history_that_is_damaged_is_said_and_the_rest_goes_on(path, tmp_path):
    recording = Recording(recorded(tmp_path / "damaged"))
    db = sqlite3.connect(recording.path)
    with db:
        db.execute("UPDATE events SET event = x'00' WHERE seq = 50")
    db.close()
    background = Background(recording, keep=lambda number, image: 1 << 30)
    background.follow(recording)
    background.join()
    assert "50" in background.trouble
    assert background.number < 50


def test_the_life_of_a_group_is_the_same_from_the_beginning_and_from_just_before_it(path):
    slow, fast = ShownRun(path), ShownRun(path)
    fast.timeline(None, None, "")
    fast._background.join()
    for group in (0, 3, 9):
        assert fast._beginning(Recording(path), group) is not None
        assert fast.group(group, {}) == slow.group(group, {})
    assert fast._beginning(Recording(path), 10**6) is None
