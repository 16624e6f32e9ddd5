"""A run that this command cannot go on with is answered with the ways that are left."""

import json
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.config.load import change_config
from controller.config.models import Config
from controller.core.events import Received, Restarted
from controller.durability import event_codec as journal
from controller.durability.recording import Recording
from controller.durability.release import RELEASES, ReleasePart, parts_with
from controller.durability.replay import replay, verdict_in_words
from controller.durability.store import SCHEMA_VERSION, Store
from controller.host.resume import read_past
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError, RunError
from tests.support.answered_run import OTHER_RELEASE, AnsweredRun

FIRST = "def decide(view, batches):\n    return 4 - view.generating\n"
OTHER = "def decide(view, batches):\n    return 2 - view.generating\n"


def half(path: Path, **staleness: object):
    run = AnsweredRun(path / "run.db", steps=5, **staleness)
    run.to_the_end(max_events=60)
    return run.config


def checkpoints(path: Path, *steps: int, adapter: bool = False) -> None:
    for step in steps:
        place = path / "checkpoints" / f"step_{step}"
        (place / "trainer").mkdir(parents=True)
        (place / ("adapter_config.json" if adapter else "config.json")).write_text("{}")


@pytest.mark.parametrize("adapter", [False, True])
def test_other_settings_are_refused_with_the_newest_checkpoint_as_a_way_on(tmp_path, adapter):
    config = half(tmp_path)
    checkpoints(tmp_path, 9, 20, 100, adapter=adapter)
    with pytest.raises(ConfigError, match="set the run aside") as raised:
        read_past(tmp_path, change_config(config, ["trainer.algorithm=gspo"]))
    begins = f"run.resume={tmp_path}/checkpoints/step_100 and another run.name"
    assert (begins in str(raised.value)) is not adapter


def test_a_strategy_that_decides_otherwise_than_it_did_is_refused_with_the_way_on(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FIRST)
    config = half(tmp_path, admission=f"{file}:decide")
    checkpoints(tmp_path, 3)
    for code in (FIRST, FIRST.replace("4 -", "2 * 2 -")):
        mend(file, code)
        assert read_past(tmp_path, config) is not None
    mend(file, OTHER)
    with pytest.raises(RunError, match=r"a strategy of yours has changed.*checkpoints/step_3 and another"):
        read_past(tmp_path, config)


def of_another_schema(file: Path) -> None:
    change(file, f"PRAGMA user_version = {SCHEMA_VERSION - 1}")


def with_a_key_that_is_gone(file: Path) -> None:
    change(file, "UPDATE facts SET value = replace(value, 'group_size', 'responses') WHERE name = 'config'")


def with_an_event_that_is_gone(file: Path) -> None:
    tag = next(tag for tag, (kind, _) in journal._KINDS.items() if kind is Received)
    journal._KINDS.pop(tag)


def without_its_beginning(file: Path) -> None:
    change(file, "DELETE FROM events WHERE seq <= 20")
    row = (20, 1.0, json.dumps({"staleflow": "0.0.1"}), b"", b"")
    change(file, "INSERT INTO snapshots (seq, now, release, digest, image) VALUES (?, ?, ?, ?, ?)", *row)


@pytest.mark.parametrize(
    ("make_older", "reason"),
    [
        (of_another_schema, "has schema"), (with_a_key_that_is_gone, "does not fit this release"),
        (with_an_event_that_is_gone, "Event 2 of .* cannot be replayed"),
        (without_its_beginning, "with a snapshot that another release made"),
    ],
)  # fmt: skip
def test_a_run_of_an_older_release_is_refused_with_the_line_that_goes_on(
    tmp_path, monkeypatch, make_older, reason
):
    monkeypatch.setattr(journal, "_KINDS", dict(journal._KINDS))
    (tmp_path / "old").mkdir()
    config = half(tmp_path / "old")
    make_older(tmp_path / "old" / "run.db")
    with pytest.raises(RunError, match=f"{reason}.*set run.resume=never") as raised:
        read_past(tmp_path / "old", config)
    assert "run.resume=/" not in str(raised.value)  # there is no checkpoint yet
    checkpoints(tmp_path / "old", 2, 10)
    with pytest.raises(RunError, match=reason) as raised:
        read_past(tmp_path / "old", config)
    (line,) = re.findall(r"run\.resume=/\S+", str(raised.value))
    assert line == f"run.resume={tmp_path}/old/checkpoints/step_10"
    begun = change_config(config, [line, "run.name=next", f"run.dir={tmp_path}"])
    assert begun.model.path == f"{tmp_path}/old/checkpoints/step_10"
    assert read_past_or_none(RunDirectory(begun), begun) is None  # a run of its own


def that_went_on(tmp_path: Path, config: str | None = None) -> Config:
    """A run in `old` that another release began, and this one went on with until it was killed."""
    (tmp_path / "old").mkdir()
    run = AnsweredRun(tmp_path / "old" / "run.db", steps=5, release=OTHER_RELEASE)
    run.to_the_end(max_events=60)
    event = Restarted(config or run.config.model_dump_json(), "somewhere", ())
    run.store = Store(tmp_path / "old" / "run.db")
    with run.store.transaction():
        run.store.append_events(run.now, [(event, False)])
        run.store.put_fact(RELEASES, parts_with([ReleasePart(1, {"sources": "old"})], first=61))
    run.store.close()
    return run.config


def test_a_configuration_with_which_another_release_went_on_is_refused_in_one_sentence(tmp_path, capsys):
    newer = json.dumps({"samples": {"nickname": "a key of another release"}})
    config = that_went_on(tmp_path, newer)
    checkpoints(tmp_path / "old", 2)
    said = (
        rf"The configuration with which {tmp_path}/old/run.db goes on at event 61 does not fit this release: "
        r"samples.nickname: Extra inputs are not permitted. The run was made by another release, which reads "
        r"it: "
    )
    with pytest.raises(RunError, match=f"^{said}.*run.resume={tmp_path}/old/checkpoints/step_2 and another"):
        read_past(tmp_path / "old", config)
    for command in (["replay"], ["story"], ["trace", "-o", str(tmp_path / "trace")]):
        name, *more = command
        group = ["1"] * (name == "story")
        assert main([name, str(tmp_path / "old"), *group, *more]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert re.match(said, line)


def test_a_run_of_another_release_goes_on_with_a_warning_that_tells_the_two_apart(tmp_path):
    config = that_went_on(tmp_path)
    with Recording(tmp_path / "old") as recording:
        assert [part.first for part in recording.parts] == [1, 61]
        assert recording.other_release().startswith("in events 1 to 60 staleflow None there and ")
        assert "sources old there" in recording.other_release(60)
        assert recording.other_release(61) == ""
        assert f"made by another release: {recording.other_release()}." in verdict_in_words(
            replay(recording), recording
        )
    past = read_past(tmp_path / "old", config)
    assert past is not None
    assert not past.notes, "this release made the newest part of it"
    change(tmp_path / "old" / "run.db", "DELETE FROM facts WHERE name = ?", RELEASES)
    past = read_past(tmp_path / "old", config)
    assert past is not None
    (note,) = past.notes
    assert note.startswith("The run was made by another release (staleflow test there and ")
    assert "may not be comparable" in note


def test_what_decides_otherwise_is_refused_with_the_release_that_decided_so(tmp_path):
    config = that_went_on(tmp_path)
    for number, name in ((30, "the one that made the run .*sources old there"), (61, "this release made")):
        change(
            tmp_path / "old" / "run.db",
            "INSERT OR REPLACE INTO fingerprints VALUES (?, ?)",
            number,
            b"12345678",
        )
        with pytest.raises(RunError, match=f"at event {number} .* something else .*{name}"):
            read_past(tmp_path / "old", config)
        change(tmp_path / "old" / "run.db", "DELETE FROM fingerprints WHERE first_seq = ?", number)


def read_past_or_none(directory: RunDirectory, config):
    try:
        return read_past(directory.path, config) if directory.has_run else None
    finally:
        directory.close()


def change(file: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(file)
    with db:
        db.execute(statement, values)
    db.close()


def mend(file: Path, code: str) -> None:
    """As between two commands, each of which is a process."""
    file.write_text(code)
    for name in [
        name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(file)
    ]:
        del sys.modules[name]
