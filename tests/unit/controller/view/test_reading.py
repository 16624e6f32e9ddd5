"""A journal that takes long to read keeps nobody waiting: a page hears how far it is, and it goes on."""

import json
import shutil
from threading import Event

import pytest

from controller.durability.recording import Recording
from controller.view import shown_run, written
from controller.view.past import kept_past, newest
from controller.view.past.kept_past import NEWEST, find_newest
from controller.view.past.replayed_core import NEAR, ReplayedCore, StillReading
from controller.view.shown_run import ShownRun
from tests.support.shown_run import Browser, recorded

RUN = "/api/runs/0"
MIDDLE = {"event": "100"}


@pytest.fixture
def path(tmp_path):
    return recorded(tmp_path / "run")


@pytest.fixture
def hurried(monkeypatch):
    """A machine so slow that every ask's patience is over after twenty events."""

    def late_after(seconds):
        events = iter(range(1, 1 << 30))
        return lambda: next(events) >= 20

    monkeypatch.setattr(shown_run, "late_after", late_after)


@pytest.mark.parametrize("at", [{}, MIDDLE, {"step": "2"}])
def test_who_asks_again_gets_nearer_and_at_last_the_answer_of_one_who_waited(path, hurried, at):
    expected, shown, ways = ShownRun(path).now(at), ShownRun(path), []
    while True:
        try:
            found = shown.now(at, patience_s=0.6)
        except StillReading as way:
            ways.append(way.number)
        else:
            break
    assert ways == sorted(set(ways))
    assert len(ways) >= 3
    assert found == expected


def test_who_cannot_wait_until_the_core_is_taken_up_hears_of_it_at_once(path, monkeypatch):
    is_taken_up, go = Event(), newest.NewestCore.go
    monkeypatch.setattr(newest.NewestCore, "go", lambda *words: is_taken_up.wait(60.0) and go(*words))
    shown = ShownRun(path)
    with pytest.raises(StillReading) as way:
        shown.now({}, patience_s=0.0)
    assert (way.value.number, way.value.last) == (0, shown.facts()["last"])
    is_taken_up.set()
    assert shown.now({}) == ShownRun(path).now({})


def test_one_who_looks_at_now_and_one_who_looks_back_both_arrive(path, hurried):
    shown, arrived = ShownRun(path), {}
    for _ in range(100):
        for name, at in (("newest", {}), ("past", MIDDLE)):
            try:
                arrived.setdefault(name, shown.ledger(at, patience_s=0.6)["number"])
            except StillReading:
                continue
    assert arrived == {"newest": shown.facts()["last"], "past": 100}


def test_a_page_hears_how_far_it_is_and_what_the_run_itself_says(path, hurried):
    (path / "summary.json").write_text(
        json.dumps({"steps": 4, "reason": "All made.", "published_version": "x"})
    )
    browser, last = Browser(path), ShownRun(path).facts()["last"]
    for page in ("moment", "now", "ledger", "why", "groups/1"):
        status, _, body = browser.ask(f"{RUN}/{page}")
        found = json.loads(body)
        assert status == 202, page
        assert 0 < found["reading"]["number"] < found["reading"]["last"] == last
        assert found["said"]["steps"] == 4
        assert found["said"]["reason"] == "All made."
        assert "published_version" not in found["said"]
        assert "error" not in found
    assert browser.ask(f"{RUN}/metrics")[0] == browser.ask(f"{RUN}/samples")[0] == 200
    _, _, text = browser.ask("/metrics")
    assert b'staleflow_steps_total{run="run"} 4' in text  # whom half of a history would mislead waits


def test_a_long_file_of_metrics_is_read_between_answers_and_the_newest_line_is_told_at_once(
    path, monkeypatch
):
    more = [json.dumps({"step": step, "compute/mfu": step / 1_000}) for step in range(5, 401)]
    lines = (path / "metrics.jsonl").read_text().rpartition("\n")[0]
    (path / "metrics.jsonl").write_text("\n".join([lines, *more]) + '\n{"step": 401, "half')
    expected = ShownRun(path).now({})
    monkeypatch.setattr(written, "AT_ONCE_BYTES", 4_000)
    monkeypatch.setattr(shown_run, "late_after", lambda seconds: lambda: True)
    browser, shown, ways = Browser(path), ShownRun(path), []
    status, _, body = browser.ask(f"{RUN}/now")
    found = json.loads(body)
    assert status == 202
    assert found["reading"]["of"] == "metrics.jsonl"
    assert 0 < found["reading"]["number"] < found["reading"]["last"]
    assert found["said"]["last_step"] == {"compute/mfu": 0.4}
    while True:
        try:
            assert shown.now({}, patience_s=0.6) == expected
            break
        except StillReading as way:
            ways.append((way.of, way.number))
    read = [number for of, number in ways if of]
    assert len(read) >= 3
    assert read == sorted(set(read))


@pytest.fixture
def kept(path, monkeypatch):
    """A run that a view has read to its end."""
    monkeypatch.setattr(newest, "LEAST_READ", 90)
    ShownRun(path).now({})
    assert (path / NEWEST).exists()
    return path


def test_the_next_view_begins_where_the_last_one_had_read_to(kept, monkeypatch):
    shown = ShownRun(shutil.copytree(kept, kept.with_name("copy")))
    (kept / NEWEST).unlink()
    expected, taken, take = ShownRun(kept).moment({}), [], ReplayedCore._take
    monkeypatch.setattr(ReplayedCore, "_take", lambda self, turn: taken.append(turn) or take(self, turn))
    found = shown.moment({})
    assert len(taken) <= NEAR
    assert found == expected


def test_a_few_events_or_a_run_that_goes_on_leave_nothing(path, monkeypatch):
    ShownRun(path).now({})
    assert not (path / NEWEST).exists()
    monkeypatch.setattr(newest, "LEAST_READ", 90)
    monkeypatch.setattr(ShownRun, "state", lambda self: "live")
    ShownRun(path).now({})
    assert not (path / NEWEST).exists()


def test_what_was_kept_by_another_release_or_is_damaged_is_read_again(kept, monkeypatch):
    expected = ShownRun(kept).now({})
    with Recording(kept) as recording:
        assert find_newest(kept, recording) is not None
        with monkeypatch.context() as patch:
            patch.setattr(kept_past, "release", lambda: {"sources": "others"})
            assert find_newest(kept, recording) is None
        data = bytearray((kept / NEWEST).read_bytes())
        data[len(data) // 2] ^= 1
        (kept / NEWEST).write_bytes(data)
        assert find_newest(kept, recording) is None
    assert ShownRun(kept).now({}) == expected
