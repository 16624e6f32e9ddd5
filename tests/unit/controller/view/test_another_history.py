"""A view that stays open while the journal under it ends, is shortened, or becomes that of another history:
it shows what a view that is opened now shows."""

import shutil

import pytest

from controller.config.models import Config
from controller.durability.recording import Recording
from controller.view.over_time import ages, starts
from controller.view.shown_run import ShownRun
from protocol.errors import RunError
from tests.support.recorded_run import record
from tests.support.shown_run import CONFIG, change, cut, shorten

LONGER = Config.model_validate(CONFIG.model_dump() | {"run": {"steps": 9}})
EVERY = 90  # events between two snapshots


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one command, which went otherwise, and one of another command."""
    folder = tmp_path_factory.mktemp("histories")
    for name, config, seed in (("one", LONGER, 1), ("again", LONGER, 2), ("other", CONFIG, 3)):
        record(folder / name, config, snapshot_every=EVERY, seed=seed)
    return folder


def copied(runs, name, place):
    """The run in this place, where nothing is kept of what a view found out."""
    shutil.copytree(runs / name, place)
    return place


def event_or_refusal(shown, step):
    """The event that finished this step, or why there is none."""
    try:
        return shown.moment({"step": str(step)})["number"]
    except RunError as error:
        return str(error)


def seen(shown, *, group=5):
    """What a view shows that is made of the journal."""
    last = shown.facts()["last"]
    first = shown.facts()["first"]
    lives = {}
    if not first:
        lives = {one: shown.group(one, {}) for one in (0, group)}
    shown.timeline(None, None, "")
    shown.join()
    steps = [event_or_refusal(shown, step) for step in (1, 3, 8)]
    middle = {"event": str((first + last) // 2)}
    return {
        "facts": shown.facts(), "now": shown.now({}), "then": shown.now(middle), "ledger": shown.ledger({}),
        "timeline": shown.timeline(None, None, ""), "starts": starts(shown, {}), "ages": ages(shown),
        "steps": steps, "lives": lives, "samples": shown.samples(), "orders": shown.orders(),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["again", "other"])
def test_a_run_directory_that_is_replaced_is_shown_as_what_it_is_now(runs, tmp_path, name):
    place = copied(runs, "one", tmp_path / "run")
    shown = ShownRun(place)
    assert seen(shown)["timeline"]["passed"] > 100
    place.rename(tmp_path / "aside")
    copied(runs, name, place)
    found = seen(shown)
    assert found == seen(ShownRun(place))
    assert found["timeline"]["trouble"] == ""


def test_a_run_that_ended_while_nobody_looked_is_shown_to_its_end(runs, tmp_path):
    place = copied(runs, "one", tmp_path / "run")
    cut(place, 150)
    shown = ShownRun(place)
    assert seen(shown)["now"]["number"] == 150
    (place / "run.db").write_bytes((runs / "one" / "run.db").read_bytes())
    (place / "summary.json").write_text("{}")
    found = seen(shown)
    assert found["now"]["steps"] == 9
    assert found == seen(ShownRun(place))


def test_events_that_a_restart_leaves_out_are_left_out_in_an_open_view(runs, tmp_path):
    place = copied(runs, "one", tmp_path / "run")
    cut(place, 150)
    shown = ShownRun(place)
    assert seen(shown)["now"]["number"] == 150
    change(place, *(("INSERT INTO skipped VALUES (?, 'a word')", (number,)) for number in range(140, 151)))
    found = seen(shown)
    assert found == seen(ShownRun(place))


@pytest.mark.parametrize("looked", [150, 179, 240])
def test_what_a_compact_run_deletes_under_an_open_view_takes_no_page_away(runs, tmp_path, looked):
    place = copied(runs, "one", tmp_path / "run")
    with Recording(place) as recording:
        *_, first, last = recording.snapshot_numbers
    assert first < last
    cut(place, looked)
    shown = ShownRun(place)
    assert seen(shown)["now"]["number"] == looked
    (place / "run.db").write_bytes((runs / "one" / "run.db").read_bytes())
    shorten(place, first)
    found = seen(shown)
    assert found["timeline"]["trouble"] == ""
    assert found["timeline"]["passed"] == found["facts"]["last"]
    expected = seen(ShownRun(place))
    if looked > first:  # the pass has seen what is deleted now, and went on from there
        assert found.pop("ages")["steps"][0] == [1, 1] != expected.pop("ages")["steps"][0]
        assert len(found.pop("timeline")["versions"]) > len(expected.pop("timeline")["versions"])
        assert found.pop("starts")["begin_s"] < expected.pop("starts")["begin_s"]
    assert found == expected


def test_a_pass_that_a_compact_run_overtakes_begins_anew_and_all_else_goes_on(runs, tmp_path):
    place = copied(runs, "one", tmp_path / "run")
    with Recording(place) as recording:
        first = recording.snapshot_numbers[0]
    shown = ShownRun(place)
    shown._look().follow(Stopped(place))
    shown.join()
    assert 0 < shown._known.background.number < first
    shorten(place, first)
    known = shown._known
    found = seen(shown)
    assert shown._known is known, "its newest event is the same"
    assert found["timeline"]["trouble"] == ""
    assert found == seen(ShownRun(place))


class Stopped(Recording):
    """A look at which the journal had few events."""

    def __init__(self, run):
        super().__init__(run)
        self.last = 50
