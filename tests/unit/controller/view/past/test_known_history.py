"""What is known of a history goes with it, and nothing of it is kept for another one."""

import shutil

import pytest

from controller.view.past import known_history
from controller.view.past.kept_past import NAME
from controller.view.shown_run import ShownRun
from protocol.errors import RunError
from tests.support.shown_run import recorded, shorten


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one command, the second of which is the longer one."""
    folder = tmp_path_factory.mktemp("known")
    made = [recorded(folder / str(seed), seed=seed) for seed in (1, 2, 3)]
    lasts = {ShownRun(run).facts()["last"]: run for run in made}
    return lasts[min(lasts)], lasts[max(lasts)]


@pytest.fixture
def shown(runs, tmp_path, monkeypatch):
    """A view of the first one, whose pass is at its end, and would be kept."""
    shutil.copytree(runs[0], tmp_path / "run")
    found = ShownRun(tmp_path / "run")
    found.timeline(None, None, "")
    found.join()
    assert not (found.path / NAME).exists()
    monkeypatch.setattr(known_history, "LEAST_EVENTS", 1)
    return found


def test_a_pass_that_ends_after_its_run_was_replaced_is_not_kept_for_the_next_one(shown, runs, tmp_path):
    known = shown._known
    known._keep_past(known.background, known.recording)
    assert (shown.path / NAME).exists(), "while it is the run's"
    shown.path.rename(tmp_path / "aside")
    shutil.copytree(runs[1], shown.path)
    known._saved = 0
    known._keep_past(known.background, known.recording)
    assert not (shown.path / NAME).exists()
    assert shown._known is not known


def test_what_goes_on_for_a_history_ends_with_it(shown, runs):
    known, background = shown._known, shown._known.background
    shutil.copy(runs[1] / "run.db", shown.path / "run.db")
    now = shown.now({})
    assert (now["number"], shown._known.background) == (shown.facts()["last"], None)
    assert shown._known is not known
    assert known.follow(shown._known.recording) is background
    background.join()
    assert background.number < now["number"], "it is not told to go on with the other one"


def test_keyframes_of_the_pass_are_those_of_its_own_history(shown, runs):
    known = shown._known
    shutil.copy(runs[1] / "run.db", shown.path / "run.db")
    shown.now({"event": "9"})
    image = known.background.image()
    known._offer(50, image)
    assert 50 in known._past.keyframes
    assert 50 not in shown._known._past.keyframes


def test_a_step_that_is_to_come_is_refused_without_reading_where_the_newest_event_is_known(runs):
    shown = ShownRun(runs[1])
    assert shown.now({})["steps"] == 4
    shown._look().past(shown._known.recording)._take = None  # nothing is stepped
    with pytest.raises(
        RunError, match="The run has 4 steps, so there is no step 5: expected one from 0 to 4"
    ):
        shown.moment({"step": "5"}, patience_s=60.0)


def test_a_step_that_is_to_come_is_refused_once_the_journal_is_read(runs):
    with pytest.raises(RunError, match="there is no step 999"):
        ShownRun(runs[1]).moment({"step": "999"})
    assert ShownRun(runs[1]).now({"step": "4"})["steps"] == 4


@pytest.mark.parametrize("is_passed", [False, True], ids=["unread", "of a pass that knows its event"])
def test_a_step_whose_events_are_deleted_is_refused_with_the_first_that_is_kept(tmp_path, is_passed):
    run = recorded(tmp_path / "run", snapshot_every=60)
    shown = ShownRun(run)
    first = shown._look().recording.snapshot_numbers[-1]
    if is_passed:
        shown.timeline(None, None, "")
        shown.join()
    shorten(run, first)
    kept = shown.now({"event": str(first)})["steps"]
    assert 1 < kept < 4
    words = rf"no moment of step {kept - 1} any more\. The first {first} events .* a step from {kept} on"
    with pytest.raises(RunError, match=words):
        shown.moment({"step": str(kept - 1)})
    with pytest.raises(RunError, match="no moment of step 0 any more"):
        shown.moment({"step": "0"})
    assert shown.now({"step": str(kept)})["steps"] == kept
    assert shown.now({"step": "4"})["steps"] == 4


@pytest.mark.parametrize("step", ["-3", "1" + 15 * "0", "two"])
def test_a_step_that_no_run_has_is_refused_at_once(runs, step):
    shown = ShownRun(runs[1])
    shown._look().past(shown._known.recording)._take = None
    with pytest.raises(RunError, match=f"'{step}'.* is no moment: expected .* a step from 0"):
        shown.moment({"step": step}, patience_s=60.0)
