"""A journal that `run.journal: compact` has shortened: who was there before, and that there was more."""

import json
import shutil

import pytest

from controller.cli.main import main
from controller.config.models import Config
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history.profile import profile
from controller.history.story import story
from controller.simulation.whatif import measure, reach
from controller.view.past.timeline import Timeline
from protocol.errors import RunError
from protocol.messages import SaveCheckpoint, Train
from tests.support.recorded_run import record
from tests.support.shown_run import shorten

CONFIG = Config.model_validate(
    {
        "run": {"steps": 8},
        "rollout": {"instances": 2, "group_size": 4, "max_response_tokens": 96},
        "trainer": {"batch_groups": 8},
        "simulation": {"pull_s": 0.2, "attach_s": 0.1, "train_token_s": 1e-4},
    }
)
WORKERS = {"rollout-0", "rollout-1", "reward-0", "trainer"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    record(path, CONFIG, snapshot_every=100)
    return path


@pytest.fixture(scope="module")
def run(whole, tmp_path_factory):
    """The same run, of which half of the events were deleted."""
    path = tmp_path_factory.mktemp("shortened") / "run"
    shutil.copytree(whole, path)
    with Recording(path) as recording:
        (begins, _) = recording.snapshot_numbers
    shorten(path, begins)
    return path


def told(run, group):
    with Recording(run) as recording:
        return list(story(recording, group))


def test_a_story_names_workers_that_attached_before_and_says_what_is_not_told(run, whole):
    with Recording(run) as recording:
        pruned, known = recording.pruned, recording.make_core().scoring.read_until
        group = min(recording.make_core().state.groups)
    head, *rest = told(run, group)
    assert head == (
        f"The first {pruned} events were deleted (run.journal is compact). What came of this group before "
        "is not told."
    )
    in_full = told(whole, group)
    assert [line for line in rest if "=" not in line] == [
        line for line in in_full if int(line.partition("#")[2].split()[0]) > pruned and "=" not in line
    ]
    assert told(run, known + 1) == told(whole, known + 1), "nothing of this one was deleted"
    with pytest.raises(RunError, match=rf"names group 0\..* The first {pruned} events were deleted"):
        told(run, 0)


def test_a_trace_has_a_track_for_each_worker_that_attached_before(run, tmp_path):
    file = tmp_path / "trace.json"
    for words, expected in (((), WORKERS), (("--workers", "rollout-1"), {"rollout-1"})):
        assert main(["trace", str(run), "-o", str(file), *words]) == 0
        entries = json.loads(file.read_text())["traceEvents"]
        names = {entry["pid"]: entry["args"]["name"] for entry in entries if entry["name"] == "process_name"}
        assert {name for name in names.values() if name != "run"} == expected
        assert {names[entry["pid"]] for entry in entries if entry["ph"] == "b"} == expected


def test_the_profile_and_the_view_know_their_names(run):
    assert set(profile(run).workers) == {"rollout-0", "rollout-1"}
    with Recording(run) as recording:
        assert set(Timeline(recording.make_core()).names.values()) == WORKERS


def test_a_simulation_has_the_workers_that_were_there(run, whole):
    with Recording(whole) as recording:
        expected = measure(recording)
    with Recording(run) as recording:
        measured = measure(recording)
        assert measured.cluster(recording.path)
        assert 0 < measured.trained_tokens < expected.trained_tokens
        steps = sum(
            type(getattr(turn.recorded.event, "message", None)).__name__ == "TrainStepFinished"
            for turn in turns(recording, recording.make_core())
        )
        assert steps - 1 <= len(measured.train_s) <= steps, "of one it does not say what it has trained"
        shapes = [(one.instances, one.text_workers, one.kv_tokens) for one in (measured, expected)]
        assert shapes[0] == shapes[1]
        measured.train_s.clear()
        with pytest.raises(RunError, match=rf"The first {recording.pruned} events were deleted"):
            measured.cluster(recording.path)


def test_a_run_is_taken_over_once_all_that_its_trainer_has_in_hand_is_known(run):
    with Recording(run) as recording:
        before = recording.make_core().state.registry.trainer().told
        assert before.making, "of this batch the shortened history does not say what was in it"
        moment = reach(recording, 0.0)
        told = moment.core.state.registry.trainer().told
        batch, checkpoint = (moment.trainer_tasks.get(task) for task in (Train, SaveCheckpoint))
        assert set(told.making) == ({batch.train_version + 1} if batch else set())
        assert told.saving == ([checkpoint.policy_version] if checkpoint else [])
