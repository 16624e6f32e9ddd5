"""What `check` says of a run that would be gone on with."""

import json
import os
import sqlite3
from pathlib import Path

import pytest
import yaml

from controller.cli.main import main
from controller.config.load import change_config
from controller.config.models import Config
from controller.controller import why_refused
from controller.data.initial_weights import initial_weights
from controller.durability.holder import lock_of, mark
from controller.host.resume import read_past
from protocol.errors import ConfigError
from tests.support.answered_run import AnsweredRun


def half(path: Path) -> Config:
    """A run that was cut off."""
    run = AnsweredRun(path / "run.db", steps=5)
    run.to_the_end(max_events=60)
    return run.config


def refused(path: Path, config: Config, *overrides: str) -> str | None:
    """What is said of the run in the folder."""
    changed = change_config(config, [f"run.dir={path.parent}", f"run.name={path.name}", *overrides])
    return why_refused(changed)


def test_it_refuses_the_changes_that_the_run_would_refuse(tmp_path):
    config = half(tmp_path)
    assert refused(tmp_path, config, "trainer.ranks=2") is None
    assert refused(tmp_path, config, "controller.keys=keys") is None  # absolute now, maybe relative there
    text = refused(tmp_path, config, "trainer.lr=0.5")
    with pytest.raises(ConfigError) as raised:
        read_past(tmp_path, change_config(config, ["trainer.lr=0.5"]))
    assert text == str(raised.value)
    assert "trainer.lr: " in str(text)
    for other in ("run.resume=never", "run.durability=off"):
        assert refused(tmp_path, config, "trainer.lr=0.5", other) is None
    elsewhere = ["run.name=other", f"run.resume={tmp_path}", "trainer.lr=0.5"]
    assert refused(tmp_path, config, *elsewhere) == text


def test_it_refuses_a_model_whose_weights_were_replaced_since_the_run_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, weights = half(tmp_path), tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"first")
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("INSERT INTO facts VALUES ('weights', ?)", (json.dumps(initial_weights(config)),))
    db.close()
    assert refused(tmp_path, config) is None
    weights.write_bytes(b"other")
    text = str(refused(tmp_path, config))
    with pytest.raises(ConfigError) as raised:
        read_past(tmp_path, change_config(config, []))
    assert text == str(raised.value)
    assert "model.safetensors has other content in the same 5 bytes" in text
    weights.write_bytes(b"first")
    assert refused(tmp_path, config) is None


@pytest.mark.parametrize(
    ("summary", "is_refused"),
    [
        ({"is_success": True, "steps": 5, "ending": "done", "steps_wanted": 5}, False),
        ({"is_success": True, "steps": 3, "ending": "done", "steps_wanted": 5}, False),  # its data ended
        ({"is_success": True, "steps": 3, "ending": "done", "steps_wanted": 3}, True),  # more are asked for
        ({"is_success": True, "steps": 3, "ending": "stopped", "steps_wanted": 5}, True),
        ({"is_success": False, "steps": 3, "ending": "failed", "steps_wanted": 5}, True),
    ],
)
def test_it_leaves_a_run_alone_that_is_over_and_set_aside(tmp_path, summary, is_refused):
    config = half(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert bool(refused(tmp_path, config, "trainer.lr=0.5")) == is_refused


def test_it_says_so_if_the_history_of_a_run_is_gone(tmp_path):
    config = half(tmp_path)
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("DELETE FROM events")
    db.close()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    text = refused(tmp_path, config)
    assert text is not None
    assert "holds no history, though the run has begun" in text


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_run_that_another_controller_holds_is_said_to_be_in_use(tmp_path, resume):
    run = tmp_path / "run"
    config = change_config(Config(), [f"run.dir={tmp_path}", "run.name=run", f"run.resume={resume}"])
    assert why_refused(config) is None
    lock_of(run).write_text(mark())
    assert why_refused(config) == (
        f"{run} is in use by the controller with pid {os.getpid()}. Wait for it, stop it, or choose another "
        "run.name."
    )


def test_copies_that_torchrun_has_started_hear_that_one_is_enough(tmp_path, monkeypatch):
    """They heard only that the run is in use, by one another."""
    config = change_config(Config(), [f"run.dir={tmp_path}", "run.name=run"])
    lock_of(tmp_path / "run").write_text(mark())
    monkeypatch.setenv("WORLD_SIZE", "2")
    told = why_refused(config)
    assert told is not None
    assert "WORLD_SIZE is 2: if torchrun has started this program 2 times, start it once, by `python`" in told


def test_the_command_ends_with_it_and_its_exit_code(tmp_path, capsys):
    config = half(tmp_path)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    words = [f"run.dir={tmp_path.parent}", f"run.name={tmp_path.name}"]
    main(["check", str(file), *words])
    assert "run.resume" not in capsys.readouterr().out
    assert main(["check", str(file), *words, "trainer.lr=0.5"]) == 2
    said = capsys.readouterr().out
    assert (
        f"error: run.resume: {tmp_path} holds a run that is not finished, made with other settings:" in said
    )
