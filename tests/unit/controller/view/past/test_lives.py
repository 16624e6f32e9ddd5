"""Lives of groups are read in parts, beside all other answers, and few of them are held."""

from functools import partial
from threading import Thread

import pytest

from controller.durability.recording import Recording
from controller.view import shown_run
from controller.view.past.life import LifeReader, as_json
from controller.view.past.lives import MOST_LIVES, MOST_READERS, WAITED_S, Lives
from controller.view.past.replayed_core import StillReading
from controller.view.shown_run import ShownRun
from protocol.errors import RunError
from tests.support.shown_run import change, recorded, shorten
from tests.support.whole_life import life_of


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("lives") / "run", snapshot_every=100)


@pytest.fixture
def recording(path):
    return Recording(path)


def nothing():
    return None


def whole():
    return lambda: False


def part(events=20):
    """A part of so many events."""
    left = iter(range(events - 1, -1, -1))
    return lambda: next(left) == 0


def test_who_asks_again_gets_nearer_and_at_last_the_life(recording):
    lives, ways = Lives(), []
    while True:
        try:
            found = lives.find(recording, 9, nothing, part)
        except StillReading as way:
            ways.append((way.number, way.last))
        else:
            break
    assert ways == [(20 * count, recording.last) for count in range(1, len(ways) + 1)]
    assert len(ways) >= 3
    assert found == as_json(life_of(recording, 9))


def test_a_life_is_read_again_once_there_are_new_events(recording, path):
    lives, begun = Lives(), []
    earlier = Recording(path)
    earlier.last = 80
    find = partial(lives.find, begin=lambda: begun.append(1), late=whole)
    before = find(earlier, 9)
    assert find(earlier, 9) is before
    assert len(begun) == 1
    after = find(recording, 9)
    assert len(begun) == 2
    assert after == as_json(life_of(recording, 9)) != before


def test_only_so_many_are_held_those_that_were_asked_for_last(recording, monkeypatch):
    monkeypatch.setattr("controller.view.past.lives.MOST_LIVES", 3)
    lives, begun = Lives(), []
    for group in (0, 1, 2, 0, 3, 0, 1):
        lives.find(recording, group, lambda group=group: begun.append(group), whole)
        assert len(lives._known) <= 3
    assert begun == [0, 1, 2, 3, 1]
    assert MOST_LIVES == 50


def test_readings_that_are_waited_for_go_on_and_one_that_is_not_makes_room(recording):
    now = [100.0]
    lives = Lives(lambda: now[0])

    def ask(group):
        with pytest.raises(StillReading) as way:
            lives.find(recording, group, nothing, part)
        return way.value.number

    for group in range(MOST_READERS):
        assert ask(group) == 20
    assert ask(MOST_READERS) == 0, "it waits"
    now[0] += WAITED_S - 1
    for group in range(1, MOST_READERS):
        assert ask(group) == 40
    assert ask(MOST_READERS) == 0
    now[0] += 1
    assert ask(MOST_READERS) == 20, "nobody waits for the first any more"
    assert ask(1) == 60
    assert sorted(lives._readers) == list(range(1, MOST_READERS + 1))
    now[0] += WAITED_S
    lives.forget()
    assert lives._readers == {}, "each has a core"


def test_a_reading_that_fails_is_given_up_and_one_whose_events_are_deleted_begins_anew(tmp_path):
    recorded(tmp_path, snapshot_every=100)
    recording, lives = Recording(tmp_path), Lives()
    with pytest.raises(RunError, match="names group 99999"):
        lives.find(recording, 99999, nothing, whole)
    assert not lives._readers
    with pytest.raises(StillReading):
        lives.find(recording, 14, nothing, part)
    shorten(tmp_path, 100)
    with pytest.raises(StillReading) as way:
        lives.find(Recording(tmp_path), 14, nothing, part)
    assert way.value.number == 120


def test_a_reading_that_meets_damage_is_given_up(tmp_path):
    recorded(tmp_path)
    change(tmp_path, "UPDATE events SET event = x'00' WHERE seq = 60")
    recording, lives = Recording(tmp_path), Lives()
    with pytest.raises(StillReading):
        lives.find(recording, 9, nothing, part)
    for _ in range(2):
        with pytest.raises(RunError, match="Event 60 "):
            lives.find(recording, 9, nothing, whole)
        assert not lives._readers


def test_while_a_life_is_read_others_are_answered(path, monkeypatch):
    shown, others, answered = ShownRun(path), [], []
    expected, now = shown.group(9, {})["life"], shown.now({})
    shown._known.lives = Lives()
    read = LifeReader.read

    def reading(self, is_late):
        other = Thread(target=lambda: answered.append(shown.now({})), daemon=True)
        if not others:
            others.append(other)
            other.start()
            other.join(10.0)
            assert answered, "it waits for the life"
        return read(self, is_late)

    monkeypatch.setattr(LifeReader, "read", reading)
    standing = shown.group(9, {})
    assert answered == [now]
    assert standing["life"] == expected


def test_a_page_hears_how_far_the_reading_of_a_life_is(path, monkeypatch):
    shown, ways = ShownRun(path), []
    expected = shown.group(9, {})
    shown.now({})
    monkeypatch.setattr(shown_run, "late", lambda patience_s: part())
    shown._known.lives = Lives()
    while True:
        try:
            found = shown.group(9, {}, patience_s=0.3)
        except StillReading as way:
            ways.append(way.number)
        else:
            break
    assert found == expected
    assert len(ways) >= 3
