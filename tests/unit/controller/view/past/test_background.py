"""The pass over a run's history, beside the answers."""

import shutil
import sqlite3

import pytest

from controller.core.core import Core
from controller.durability.recording import Recording
from controller.view.past.background import Background
from controller.view.past.replayed_core import ReplayedCore
from controller.view.shown_run import ShownRun
from tests.support.shown_run import change, recorded


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("background") / "run")


def test_it_leaves_keyframes_from_which_any_moment_is_the_true_one(path):
    recording, plain = Recording(path), ReplayedCore(Recording(path))
    replayed = ReplayedCore(recording, spacing=1 << 30)
    background = Background(recording, keep=replayed.offer)
    background._spacing = replayed.keyframes.spacing = 40
    background.follow(recording)
    background.join()
    assert background.number == recording.last
    assert len(replayed.keyframes.numbers) > 3
    for number in (recording.last // 3, recording.last // 2, 7):
        replayed.at(number)
        plain.at(number)
        assert replayed.image() == plain.image()


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


def test_what_could_not_be_read_is_tried_again_once_the_journal_was_looked_at_anew(path, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(path, run)
    whole = (run / "run.db").read_bytes()
    change(run, "UPDATE events SET event = x'00' WHERE seq = 50")
    recording = Recording(run)
    background, expected = (Background(one, keep=never_more) for one in (recording, Recording(path)))
    for _ in range(2):  # the same look at the journal is of no use
        background.follow(recording)
        background.join()
        assert background.number == 49
        assert "Event 50 " in background.trouble
    (run / "run.db").write_bytes(whole)
    background.follow(Recording(run))
    background.join()
    expected.follow(recording := Recording(path))
    expected.join()
    assert (background.number, background.trouble) == (recording.last, "")
    assert background.timeline.as_plain() == expected.timeline.as_plain(), "each event is taken once"


def test_a_core_that_fails_is_not_gone_on_with(path, monkeypatch):
    recording = Recording(path)
    background, step = Background(recording, keep=never_more), background_core_step(fails_at=50)
    monkeypatch.setattr(Core, "step", step)
    for _ in range(2):
        background.follow(Recording(path))
        background.join()
        assert "The core fails at event 50 " in background.trouble
        assert background.number == 49


def background_core_step(*, fails_at):
    """`Core.step`, which fails at one event, once."""
    count, step = iter(range(1, 1 << 30)), Core.step

    def stepping(*words, **more):
        if next(count) == fails_at:
            raise ZeroDivisionError
        return step(*words, **more)

    return stepping


def never_more(number, image):
    return 1 << 30


def test_one_that_is_stopped_goes_no_further_and_keeps_nothing(path):
    ended, recording = [], Recording(path)
    background = Background(recording, keep=never_more, on_end=lambda *words: ended.append(words))
    with background.answering():
        background.follow(recording)
        background.stop()
    background.join()
    assert background.number < recording.last
    background.follow(recording)
    assert not background._thread.is_alive()
    assert not ended


def test_the_life_of_a_group_is_the_same_from_the_beginning_and_from_just_before_it(path):
    slow, fast = ShownRun(path), ShownRun(path)
    fast.timeline(None, None, "")
    fast.join()
    known = fast._look()
    for group in (0, 3, 9):
        assert known.beginning(known.recording, group) is not None
        assert fast.group(group, {}) == slow.group(group, {})
    assert known.beginning(known.recording, 10**6) is None
