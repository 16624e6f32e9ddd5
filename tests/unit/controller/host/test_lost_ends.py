"""A run.db that has lost its newest part, while the files beside it still have it."""

import asyncio
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from controller.config.load import change_config
from controller.config.models import Config
from controller.core.commands import Command, ReportStep
from controller.host.resume import find_past
from controller.host.run_directory import RunDirectory
from protocol.errors import ConfigError, RunError
from tests.support.answered_run import AnsweredRun

FOLDED, KILLED = 2, 5  # train steps after which the log is folded into run.db, and the run is killed


class Killed(AnsweredRun):
    """Writes the files of a run as a shell does; `run` is what a kill in step KILLED leaves."""

    def __init__(self, folder: Path, **trainer: object) -> None:
        self.folder, self.live = folder / "run", folder / "live"
        self.live.mkdir()
        super().__init__(self.live / "run.db", steps=8, trainer=trainer)
        self.to_the_end()

    def answer(self, command: Command) -> None:
        super().answer(command)
        if isinstance(command, ReportStep) and not self.folder.exists():
            with (self.live / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(command.metrics) + "\n")
            if command.metrics["step"] == FOLDED:
                db = sqlite3.connect(self.live / "run.db")
                db.execute("PRAGMA wal_checkpoint(PASSIVE)")
                db.close()
            if command.metrics["step"] == KILLED:
                shutil.copytree(self.live, self.folder)

    def checkpoint(self, step: int) -> Path:
        place = self.folder / "checkpoints" / f"step_{step}"
        (place / "trainer").mkdir(parents=True)
        (place / "config.json").touch()
        (place / ".complete").touch()
        return place

    def steps(self, name: str) -> list[int]:
        return [json.loads(line)["step"] for line in (self.folder / name).read_text().splitlines()]


def taken_up(folder: Path, config: Config) -> list[str]:
    """What is told, on the console and in the log, when the run goes on."""
    config = change_config(config, [f"run.dir={folder.parent}", f"run.name={folder.name}"])
    directory = RunDirectory(config)
    try:
        past = asyncio.run(find_past(directory, config, on_warning=pytest.fail))
    finally:
        directory.close()
    assert past is not None
    return past.notes


def test_a_run_that_was_only_killed_goes_on_without_a_word(tmp_path):
    run = Killed(tmp_path)
    run.checkpoint(KILLED)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "pol')  # the line in hand was cut off
    assert taken_up(run.folder, run.config) == []
    assert run.steps("metrics.jsonl") == [1, 2, 3, 4, 5]
    assert not (run.folder / "metrics.jsonl.1").exists()
    assert (run.folder / "checkpoints" / f"step_{KILLED}").exists()


@pytest.mark.parametrize("how", ["removed", "flipped"])
def test_a_log_that_is_damaged_is_told_and_nothing_that_it_left_is_overwritten(tmp_path, how):
    run = Killed(tmp_path)
    log = run.folder / "run.db-wal"
    if how == "removed":
        log.unlink()
    else:
        data = bytearray(log.read_bytes())
        data[len(data) // 10] ^= 0x10
        log.write_bytes(data)
    run.checkpoint(4)
    (run.folder / "evaluations.jsonl").write_text('{"policy_version": 4}\n')
    (told,) = taken_up(run.folder, run.config)
    steps = run.steps("metrics.jsonl")
    assert steps == list(range(1, len(steps) + 1))
    assert FOLDED <= len(steps) < 4
    assert (
        f"run.db ends at step {len(steps)}, metrics.jsonl at step {KILLED}, the newest checkpoint is step_4"
        in told
    )
    assert "evaluations.jsonl has 1 evaluations, of which run.db knows 0: its newest part is lost" in told
    assert run.steps("metrics.jsonl.1") == [1, 2, 3, 4, 5]
    assert (run.folder / "evaluations.jsonl.1").exists()
    assert (run.folder / "checkpoints" / "undone_step_4" / ".complete").exists()
    assert "What was made after it is made again, from other responses" in told
    assert taken_up(run.folder, run.config) == []  # it was told


def test_a_checkpoint_alone_tells_it_too_and_one_of_before_is_not_overwritten(tmp_path):
    run = Killed(tmp_path)
    run.checkpoint(KILLED + 1)
    (run.folder / "checkpoints" / f"undone_step_{KILLED + 1}").mkdir()
    (run.folder / "checkpoints" / f"undone_step_{KILLED + 1}" / "model").touch()
    (told,) = taken_up(run.folder, run.config)
    assert f"ends at step {KILLED}, the newest checkpoint is step_{KILLED + 1}: its newest part" in told
    assert f"checkpoints/undone_step_{KILLED + 1}.1" in told


def test_damaged_lines_of_metrics_are_no_sign_of_a_lost_end(tmp_path):
    run = Killed(tmp_path)
    file = run.folder / "metrics.jsonl"
    *lines, last = file.read_text().splitlines()
    lines[2] = "\x00"
    assert '"step": 5' in last
    file.write_text("\n".join([*lines, last.replace('"step": 5', '"step": 57')]) + "\n")
    assert taken_up(run.folder, run.config) == []
    assert run.steps("metrics.jsonl") == [1, 2, 3, 4, 5]


def test_an_end_that_leaves_no_checkpoint_to_go_on_from_is_refused_and_nothing_changes(tmp_path):
    run = Killed(tmp_path, checkpoint_steps=1)  # the batches before the newest checkpoint are dropped
    log = (run.folder / "run.db-wal").read_bytes()
    (run.folder / "run.db-wal").unlink()
    saved = run.checkpoint(KILLED)
    before = contents(run.folder)
    for _ in range(2):  # nor does the next try know less
        with pytest.raises(RunError, match="its newest part is lost") as raised:
            taken_up(run.folder, run.config)
        assert contents(run.folder) == before
    told = str(raised.value)
    (steps,) = re.findall(r"run.db ends at step (\d+), metrics.jsonl at step 5", told)
    assert re.search(
        rf"takes a complete checkpoint of version (\d to )?{steps}, and {saved.parent} has none", told
    )
    assert "Put the run.db that the run wrote back, with its run.db-wal, begin a new run" in told
    assert f"(run.resume={saved} and another run.name)" in told
    assert "made again" not in told
    begun = change_config(run.config, [f"run.resume={saved}", "run.name=next", f"run.dir={tmp_path}"])
    assert begun.model.path == str(saved)
    (run.folder / "run.db-wal").write_bytes(log)
    assert taken_up(run.folder, run.config) == []  # the other way on
    assert run.steps("metrics.jsonl") == [1, 2, 3, 4, 5]


def test_an_end_that_leaves_a_checkpoint_goes_on_from_it(tmp_path):
    run = Killed(tmp_path, checkpoint_steps=1)
    (run.folder / "run.db-wal").unlink()
    run.checkpoint(KILLED)
    run.checkpoint(FOLDED)
    (told,) = taken_up(run.folder, run.config)
    assert "made again, from other responses" in told
    assert {one.name for one in (run.folder / "checkpoints").iterdir()} == {
        f"step_{FOLDED}", f"undone_step_{KILLED}"
    }  # fmt: skip


def test_a_checkpoint_that_the_kept_batches_do_not_reach_is_none_to_go_on_from(tmp_path):
    run = Killed(tmp_path, checkpoint_steps=1)
    (run.folder / "run.db-wal").unlink()
    run.checkpoint(0)
    with pytest.raises(RunError, match=r"checkpoints has none\. Nothing was changed\."):
        taken_up(run.folder, run.config)


def contents(folder: Path) -> dict[str, bytes]:
    """Of the files, without the lock and what SQLite keeps for readers."""
    files = (one for one in folder.rglob("*") if one.is_file() and not one.name.endswith(("-wal", "-shm")))
    return {str(one.relative_to(folder)): one.read_bytes() for one in files}


def test_lines_that_cannot_be_read_are_named_and_what_to_do(tmp_path):
    run = Killed(tmp_path)
    run.checkpoint(KILLED)
    (run.folder / "metrics.jsonl").unlink()
    (run.folder / "metrics.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be read: Is a directory\. .* move it away"):
        taken_up(run.folder, run.config)
