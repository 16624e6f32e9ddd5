"""A checkpoint of a lost history that its trainer finishes after the run was resumed without that history."""

import pytest
from scripted_peers import settings
from test_lying_peers import NAMES, STEPS, Stage, check_the_end

from protocol.errors import RunError
from tests.support.scripted import Disk
from workers.trainer.checkpoints import newest_checkpoint

SOON_S = 30


async def test_it_is_set_aside_before_the_next_trainer_looks_for_one(tmp_path):
    disk = Disk()
    stage = Stage(settings(tmp_path, steps=STEPS), disk)
    late = tmp_path / "run" / "checkpoints" / "step_1"
    async with stage.at_work():
        (late / "trainer").mkdir(parents=True)
        for name in ("config.json", "trainer/state.safetensors", ".complete"):
            (late / name).touch()
        stage.add_honest()
        await stage.to_the_end()
    check_the_end(stage, disk)
    aside = late.with_name("undone_step_1")
    assert (aside / ".complete").exists()
    assert newest_checkpoint(late.parent, at_most=STEPS) is None  # what a trainer would load that died now
    assert f"{aside} is of a version that does not count any more." in stage.said


async def test_one_that_cannot_be_renamed_ends_the_run_in_words(tmp_path, monkeypatch):
    stage = Stage(settings(tmp_path, steps=STEPS), Disk())
    late = tmp_path / "run" / "checkpoints" / "step_1"

    async def play() -> None:
        async with stage.at_work(within_s=SOON_S):
            late.mkdir(parents=True)
            monkeypatch.setattr("pathlib.Path.rename", refuse)
            stage.add("trainer", NAMES["trainer"])
            await stage.to_the_end()

    with pytest.raises(RunError, match=r"step_1 cannot be renamed to undone_step_1: .* Move it out"):
        await play()
    assert late.exists()


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")
