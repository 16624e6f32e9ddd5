"""A story told from the nearest snapshot to the last word about its group is the same to the letter."""

import shutil
import sqlite3
from collections.abc import Callable, Iterable

import pytest

from controller.config.models import Config
from controller.core.core import Core
from controller.core.events import HeldOutRead, PromptsRead, Received
from controller.core.state.groups import FIRST_EVALUATION_GROUP
from controller.durability.recording import Recording
from controller.durability.replay import turns
from controller.history import story as telling
from controller.history.story import beginning, story, told_turns
from protocol.errors import RunError
from protocol.messages import Attach, ExamplesEncoded
from tests.support.answered_run import AnsweredRun
from tests.support.recorded_run import record
from tests.support.shown_run import shorten

CONFIG = {
    "run": {"steps": 12},
    "rollout": {"instances": 3, "group_size": 3, "max_response_tokens": 200, "max_running": 8},
    "trainer": {"batch_groups": 4, "checkpoint_steps": 3, "keep_checkpoints": 1},
    "staleness": {"max_staleness": 2},
    "controller": {"lease_s": 6.0, "respawns": 1000},
    "simulation": {
        "workload": {"prompt_tokens": 20}, "pull_s": 0.2, "train_token_s": 5e-4,
        "faults": {"rollout_kills": 0.3, "reward_kills": 0.1, "late_share": 0.02},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("faulty")
    record(path, Config.model_validate(CONFIG), snapshot_every=200)
    return path


def in_full(recording: Recording) -> dict[int, list[str]]:
    """The stories of every eighth group, by the whole history in one pass."""
    return told_in_full(recording, lambda core: range(0, core.scoring.read_until, 8))


def stories_of_held_out(recording: Recording) -> dict[int, list[str]]:
    """The same of held-out groups, all of them."""
    first = FIRST_EVALUATION_GROUP
    return told_in_full(recording, lambda core: range(first, core.evaluation._next_group))


def told_in_full(recording: Recording, groups_of: Callable[[Core], Iterable[int]]) -> dict[int, list[str]]:
    """By group, its story: no event is left out, wherever the group stands."""
    core, names, before = recording.make_core(), {}, {}
    told: dict[int, list[str]] = {}
    for turn in turns(recording, core):
        event = turn.recorded.event
        if isinstance(event, Received) and isinstance(event.message, Attach):
            names[event.peer] = event.message.name
        for group in groups_of(core):
            lines = [*telling._of_event(event, group, names)]
            for command in turn.commands:
                lines += telling._of_command(command, group, names)
            now = telling._standing(core, group)
            if now != before.get(group, ""):
                lines.append(f"   = {now or 'gone from the system'}")
            before[group] = now
            head = f"{turn.recorded.now:12.6f} s  #{turn.recorded.number:<7} "
            told.setdefault(group, []).extend(head + line for line in lines)
    return told


def test_every_groups_story_is_the_one_of_the_whole_history(run_dir):
    with Recording(run_dir) as recording:
        stories = in_full(recording)
        assert len(stories) > 8
        for group, lines in stories.items():
            if lines:
                assert list(story(recording, group)) == lines, f"group {group}"


def stepped_for(recording: Recording, group: int) -> list[int]:
    """Events that its story is told from."""
    begin = beginning(recording, group)
    return [turn.recorded.number for turn, _ in told_turns(recording, group, begin)]


def test_only_what_may_concern_the_group_is_stepped_through(run_dir):
    with Recording(run_dir) as recording:
        oldest = list(recording.snapshots())[-1]
        seen = stepped_for(recording, oldest.core.scoring.read_until)
        assert seen[0] == oldest.number + 1
        seen = stepped_for(recording, 0)
        assert seen[0] == 1
        assert len(seen) < recording.last / 2


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with several evaluations, of each of which the worst answer is kept."""
    path = tmp_path_factory.mktemp("evaluated")
    data = {"held": {"path": "x.jsonl", "max_prompts": 2}}
    config = Config.model_validate(
        CONFIG
        | {
            "evaluation": {"every_steps": 3, "data": data},
            "samples": {"held_out": 1},
            "simulation": {"workload": {"prompt_tokens": 9}},
        }
    )
    record(path, config, snapshot_every=200)
    return path


def test_a_held_out_prompt_is_told_of_until_its_evaluation_has_ended_and_no_further(evaluated):
    with Recording(evaluated) as recording:
        found, in_all = recording.newest(HeldOutRead), stories_of_held_out(recording)
        end = found.event.first_group + len(found.event.sources)
        assert end > FIRST_EVALUATION_GROUP + 4, "each evaluation has groups of its own"
        for group in range(FIRST_EVALUATION_GROUP, end):
            assert list(story(recording, group)) == in_all[group]
        lines = in_all[FIRST_EVALUATION_GROUP]
        assert any(": evaluates version" in line for line in lines)
        last_told = int(lines[-1].partition("#")[2].split()[0])
        assert stepped_for(recording, FIRST_EVALUATION_GROUP)[-1] <= last_told + 20 < recording.last / 2


def test_a_run_that_ends_while_it_is_read_leaves_nothing_beside_its_file(tmp_path):
    run = AnsweredRun(tmp_path / "run.db", steps=2)
    close, run.store.close = run.store.close, lambda: None
    run.to_the_end(max_events=20)
    with Recording(tmp_path) as recording:
        lines = story(recording, 0)
        next(lines)  # in the middle of the story
        run.to_the_end()
        close()
        assert [file.name for file in tmp_path.iterdir()] == ["run.db"]
        assert any("Train 0.0" in line for line in lines) or recording.last == 20


def test_events_that_a_compact_run_deletes_while_they_are_read_are_missed_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr("controller.durability.recording.AT_ONCE", 5)
    run = AnsweredRun(tmp_path / "run.db", steps=2)
    run.to_the_end()
    with Recording(tmp_path) as recording:
        events = recording.events()
        next(events)
        db = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
        db.execute("DELETE FROM events WHERE seq <= 20")
        db.close()
        with pytest.raises(RunError, match=r"was shortened while it was read.* up to 20\. Ask again"):
            list(events)


def test_who_stands_before_what_a_compact_run_has_kept_hears_that_it_was_deleted(run_dir, tmp_path):
    shutil.copy(run_dir / "run.db", tmp_path)
    with Recording(tmp_path) as recording:
        number = recording.snapshot_numbers[0]
    shorten(tmp_path, number)
    with Recording(tmp_path) as recording:
        assert recording.pruned == number
        with pytest.raises(RunError, match=rf"was shortened while it was read.* up to {number}\. Ask again"):
            next(recording.events(after=number - 9))


def never_stepped(*_):
    pytest.fail("events were stepped through")


def test_a_group_that_was_never_read_is_refused_before_anything_is_stepped_through(run_dir, monkeypatch):
    with Recording(run_dir) as recording:
        newest = recording.newest(PromptsRead)
        end = newest.event.first_group + newest.event.count
        for group, words in (
            (end, f"numbered by prompts, which have the numbers 0 to {end - 1}"),
            (-1, f"the numbers 0 to {end - 1}"),
            (FIRST_EVALUATION_GROUP, "Held-out prompts were not read yet"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(telling, "turns", never_stepped)
                with pytest.raises(RunError, match=f"names group {group}\\. .*{words}"):
                    next(story(recording, group))
        assert list(story(recording, end - 1)), "the last one that was"


def test_what_is_newest_of_a_kind_is_found_from_the_end_and_never_what_was_skipped(run_dir):
    with Recording(run_dir) as recording:
        reads = [one for one in recording.events() if isinstance(one.event, PromptsRead)]
        assert recording.newest(PromptsRead)[:3] == reads[-1][:3]
        assert recording.newest(HeldOutRead) is None
        recording.skipped[reads[-1].number] = "it broke the core"
        assert recording.newest(PromptsRead)[:3] == reads[-2][:3]


def test_a_shortened_journal_that_has_no_prompts_any_more_is_read_for_its_groups(run_dir, monkeypatch):
    with Recording(run_dir) as recording:
        monkeypatch.setattr(recording, "newest", lambda kind: None)
        with pytest.raises(RunError, match="were not read yet"):
            telling._refuse_unread(recording, 3)
        recording.pruned = 200
        telling._refuse_unread(recording, 3)


def test_an_example_of_supervised_training_is_told_as_a_prompt_is():
    told = ExamplesEncoded(((7, 12, 30),), ((8, "it is too long"),))
    assert [*telling.about(told, 7)] == ["encoded, 12 prompt tokens and 30 of its response"]
    assert [*telling.about(told, 8)] == ["refused: it is too long"]
    assert telling.named_groups(Received("peer", told)) == [7, 8]
