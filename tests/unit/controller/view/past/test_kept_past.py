"""The pass over a history that is kept: taken up where it ended, for the history that it was made of."""

import errno
import os
import shutil
import sqlite3

import msgpack
import pytest

from controller.durability.recording import Recording
from controller.view.over_time import ages, starts
from controller.view.past import kept_past, known_history
from controller.view.past.kept_past import NAME, NEWEST, find_newest, find_past
from controller.view.past.replayed_core import ReplayedCore
from controller.view.shown_run import ShownRun
from tests.support.shown_run import recorded


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A run that a view has gone through, and what that showed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_history, "LEAST_EVENTS", 100)
        run = recorded(tmp_path_factory.mktemp("kept") / "run")
        return run, went_through(run)


@pytest.fixture
def copy(seen, tmp_path):
    shutil.copytree(seen[0], tmp_path / "run")
    return tmp_path / "run"


def went_through(run):
    """What a view shows of the whole history; how many events it has stepped through for that."""
    shown = ShownRun(run)
    shown.timeline(None, None, "")
    began = shown._known.background.number
    shown.join()
    last = shown._known.background.number
    jumps = [shown.now({"event": str(number)})["now_s"] for number in (7, 150, last - 3)]
    steps = [shown.moment({"step": str(step)})["number"] for step in (1, 2, 4)]
    lives = [shown.group(group, {})["life"] for group in (0, 5)]
    return {
        "timeline": shown.timeline(None, None, ""), "starts": starts(shown, {}), "ages": ages(shown),
        "jumps": jumps, "steps": steps, "lives": lives,
    }, began  # fmt: skip


def test_the_next_view_shows_the_same_without_the_pass(seen, copy):
    expected, _ = seen[1]
    found, began = went_through(copy)
    assert found == expected
    with Recording(copy) as recording:
        assert began == recording.last
        assert len(find_past(copy, recording).keyframes[2]) > 0


def test_a_step_is_found_without_going_through_what_lies_before_it(copy, monkeypatch):
    monkeypatch.setattr(
        ReplayedCore, "at_step", lambda self, step: pytest.fail("it goes through the history")
    )
    shown = ShownRun(copy)
    shown.timeline(None, None, "")
    assert shown.now({"step": "3"})["steps"] == 3


def change(run, statement, *values):
    with sqlite3.connect(run / "run.db") as db:
        db.execute(statement, values)
    db.close()


IS_LAST = "seq = (SELECT max(seq) FROM events)"


def spoil(run):
    file = run / NAME
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        spoil,
        lambda run: (run / NAME).write_bytes(b""),
        lambda run: (run / NAME).unlink(),
        lambda run: ((run / NAME).unlink(), os.mkfifo(run / NAME)),
        lambda run: change(run, f"UPDATE events SET checksum = checksum + 1 WHERE {IS_LAST}"),
        lambda run: change(run, f"DELETE FROM events WHERE {IS_LAST}"),
        lambda run: change(run, "INSERT INTO skipped VALUES (9, 'a word')"),
        lambda run: change(run, "UPDATE facts SET value = value || ' ' WHERE name = 'config'"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_of_another_history_is_not_used(copy, harm):
    harm(copy)
    with Recording(copy) as recording:
        assert find_past(copy, recording) is None


@pytest.mark.parametrize(
    "body",
    [
        msgpack.packb(["history of another release", {"number": 5}, [b"skeleton", [], "one more"]]),
        msgpack.packb(["history of another release", 5, [b"skeleton", []], {}, [500, {}, {}], "one more"]),
        msgpack.packb({"history": 5}),
        msgpack.packb([]),
        msgpack.packb({"whole": "and more"}) * 2,
        b"\x81\x90\x01",  # a map whose key is a list
        b"\xc1",
    ],
    ids=["image", "more", "map", "nothing", "twice", "odd key", "no MessagePack"],
)
@pytest.mark.parametrize("name", [NAME, NEWEST])
def test_what_another_release_kept_in_another_form_is_not_used(copy, name, body):
    (copy / name).write_bytes(kept_past._digest(body) + body)
    with Recording(copy) as recording:
        find = find_past if name == NAME else find_newest
        assert find(copy, recording) is None
        assert ShownRun(copy).now({"event": "9"})["last"] == recording.last


def test_another_release_makes_its_own_pass(copy, monkeypatch):
    monkeypatch.setattr(kept_past, "release", lambda: {"sources": "others"})
    with Recording(copy) as recording:
        assert find_past(copy, recording) is None


def test_a_run_that_cannot_be_written_to_is_shown_all_the_same(copy, monkeypatch):
    (copy / NAME).unlink()
    monkeypatch.setattr(known_history, "LEAST_EVENTS", 100)
    monkeypatch.setattr(kept_past, "for_owner_only", refuse)
    _, began = went_through(copy)
    assert not list(copy.glob("*view.past*"))
    assert began < 1000


def test_a_run_on_a_disk_that_is_only_read_is_shown_all_the_same(copy, monkeypatch):
    for name in (NAME, NEWEST):
        (copy / name).unlink(missing_ok=True)
    monkeypatch.setattr(known_history, "LEAST_EVENTS", 100)
    monkeypatch.setattr(kept_past, "for_owner_only", refuse_as_a_disk_that_is_only_read)
    monkeypatch.setattr(kept_past.Path, "unlink", refuse_as_a_disk_that_is_only_read)
    _, began = went_through(copy)
    assert not list(copy.glob("*view.past*"))
    assert began < 1000


def test_no_link_that_came_with_the_run_is_written_through(copy, monkeypatch, tmp_path):
    victim = tmp_path / "thesis.tex"
    victim.write_text("all of it")
    for name in (NAME, NEWEST):
        (copy / name).unlink(missing_ok=True)
        (copy / f".{name}.{os.getpid()}").symlink_to(victim)
    monkeypatch.setattr(known_history, "LEAST_EVENTS", 100)
    went_through(copy)
    assert victim.read_text() == "all of it"
    assert (copy / NAME).is_file()


def refuse(*_):
    raise PermissionError(13, "Permission denied")


def test_a_short_pass_is_not_kept(tmp_path):
    run = recorded(tmp_path / "run")
    went_through(run)
    assert not (run / NAME).exists()


def refuse_as_a_disk_that_is_only_read(*_, **__):
    raise OSError(errno.EROFS, "Read-only file system")
