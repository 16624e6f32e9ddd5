"""A run goes on where its folder, or its data alone, lies elsewhere than it did; never with other data."""

import json
from pathlib import Path

import pytest

from controller.config.load import change_config
from controller.config.models import Config
from controller.data.moved_files import as_lies_now
from controller.data.sources import Sources
from controller.durability.recording import Recording
from controller.durability.replay import replay
from controller.host.resume import read_past, why_refused
from protocol.errors import ConfigError
from tests.support.answered_run import AnsweredRun, execute


def project(folder: Path, word: str = "p") -> Path:
    """A folder with data, as a user has it."""
    (folder / "rows").mkdir(parents=True)
    for name in "ab":
        (folder / "rows" / f"{name}.jsonl").write_text(f'{{"prompt":"{word}{name}"}}\n' * 20)
    return folder


def reading(folder: Path, **data: object) -> dict[str, object]:
    return {"path": str(folder / "rows"), **data}


def cut_off(run: Path, data: dict[str, object], *, was_at: Path) -> None:
    """A run in the folder `run` that was cut off when it was at another place."""
    run.mkdir(parents=True)
    AnsweredRun(run / "run.db", data=data, run_dir=str(was_at)).to_the_end(max_events=30, flush=False)
    known = Sources(Config.model_validate({"data": data})).fingerprints
    execute(run / "run.db", "INSERT INTO facts VALUES ('data', ?)", (known,))


def now(run: Path, data: dict[str, object]) -> Config:
    with Recording(run) as recording:
        tree = recording.config().model_dump()
    places = {**tree["run"], "dir": str(run.parent), "name": run.name}
    return Config.model_validate({**tree, "run": places, "data": data})


def test_a_project_that_was_moved_goes_on(tmp_path):
    old, new = project(tmp_path / "old"), tmp_path / "new" / "place"
    cut_off(old / "runs" / "mine", reading(old), was_at=old / "runs" / "mine")
    new.parent.mkdir()
    old.rename(new)
    config = now(new / "runs" / "mine", reading(new))
    past = read_past(new / "runs" / "mine", config)
    assert past is not None
    assert not past.is_over
    assert why_refused(config) is None
    with pytest.raises(ConfigError, match=r"data.shuffle: True there, False now"):
        read_past(new / "runs" / "mine", now(new / "runs" / "mine", reading(new, shuffle=False)))


def test_a_project_with_a_strategy_of_its_own_that_was_moved_goes_on(tmp_path):
    """Its absolute path leads into the folder that has moved."""
    then, there = tmp_path / "then", tmp_path / "there"
    (then / "runs" / "a").mkdir(parents=True)
    (then / "mine.py").write_text("from strategies.filtering import keep_all as keep\n")
    run = AnsweredRun(
        then / "runs" / "a" / "run.db", run_dir=str(then / "runs" / "a"), filter=f"{then}/mine.py:keep"
    )
    run.to_the_end(max_events=30, flush=False)
    then.rename(there)
    config = change_config(run.config, [f"staleness.filter={there}/mine.py:keep"])
    past = read_past(there / "runs" / "a", config)
    assert past is not None
    assert past.core.state.steps == run.core.state.steps
    with Recording(there / "runs" / "a") as recording:
        assert replay(recording).is_equal


def test_data_alone_may_lie_elsewhere_with_the_same_content(tmp_path):
    there, here = project(tmp_path / "there"), project(tmp_path / "here")
    other, run = project(tmp_path / "other", "q"), tmp_path / "runs" / "mine"
    cut_off(run, reading(there), was_at=run)
    assert read_past(run, now(run, reading(here))) is not None
    named = f"data.path: '{there}/rows' there, '{other}/rows' now"
    with pytest.raises(ConfigError, match=named):
        read_past(run, now(run, reading(other)))
    assert named in (why_refused(now(run, reading(other))) or "")
    with pytest.raises(ConfigError, match=r"data.path: .*, 'mine.py:prompts' now"):
        read_past(run, now(run, {"path": "mine.py:prompts"}))


def test_one_of_several_sources_may_lie_elsewhere(tmp_path):
    there, here = project(tmp_path / "there"), project(tmp_path / "here")
    run = tmp_path / "runs" / "mine"
    sources = [{**reading(there), "name": "a"}, {"path": str(there / "rows" / "a.jsonl"), "name": "b"}]
    cut_off(run, {"sources": sources}, was_at=run)
    moved = [sources[0], {"path": str(here / "rows" / "a.jsonl"), "name": "b"}]
    assert read_past(run, now(run, {"sources": moved})) is not None
    with pytest.raises(ConfigError, match=r"data\.sources\.1\.path"):
        read_past(
            run, now(run, {"sources": [sources[0], {"path": str(here / "rows" / "b.jsonl"), "name": "b"}]})
        )


@pytest.mark.parametrize(
    ("then", "at", "path", "found"),
    [
        ("/a/p/runs/r", "/b/p/runs/r", "/a/p/mine.py:score", "/b/p/mine.py:score"),
        ("/a/p/runs/r", "/a/q/runs/r", "/a/pages/mine.py:score", "/a/pages/mine.py:score"),
        ("/p/runs/r", "/mnt/p/runs/r", "/models/mine.py:score", "/models/mine.py:score"),
        ("/p/runs/r", "/p/runs/s", "/p/mine.py:score", "/p/mine.py:score"),
    ],
)
def test_a_path_follows_the_folder_that_has_moved_and_no_other(then, at, path, found):
    config = Config.model_validate({"reward": {"function": path}})
    tree = as_lies_now(config, config, places=(then, at), data=[])
    assert tree["reward"]["function"] == found
    assert json.dumps(tree).count(found) == 1
