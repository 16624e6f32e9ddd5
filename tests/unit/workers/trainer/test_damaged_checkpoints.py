"""A checkpoint that is damaged, foreign or too new is passed over in words, and the one before it is used."""

import json
import logging

import pytest
import torch

from workers.trainer.checkpoints import newest_checkpoint, prepare, read_state, write_checkpoint
from workers.trainer.saved.shares import Share


@pytest.fixture
def directory(tmp_path):
    """Checkpoints of versions 1 and 2."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    write(tmp_path / "checkpoints", 1)
    write(tmp_path / "checkpoints", 2)
    return tmp_path / "checkpoints"


def write(directory, version, keep=2):
    state = {"model.weight": Share(torch.full((300,), float(version)))}
    model = directory.parent / "model"
    prepare(directory, version)
    return write_checkpoint(
        directory, version, model_directory=model, state=state, dtype=torch.float32, keep=keep
    )


def flip(file):
    """One bit in the middle of a tensor, which no header knows of."""
    content = bytearray(file.read_bytes())
    content[-600] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer/state.safetensors", "trainer/checksums.json"])
def test_one_flipped_bit_is_enough(directory, caplog, name):
    file = directory / "step_2" / name
    if name.endswith("json"):
        file.write_text("{")
    else:
        flip(file)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(directory).name == "step_1"
    assert "step_2 is not used: " in caplog.text
    assert file.name in caplog.text
    assert "step_2.damaged; remove it if you have no use for it" in caplog.text
    assert read_state(newest_checkpoint(directory))[0] == 1


def test_one_that_is_damaged_is_not_among_those_that_are_kept(directory):
    flip(directory / "step_2" / "model.safetensors")
    assert newest_checkpoint(directory, is_first=False).name == "step_1"
    assert newest_checkpoint(directory).name == "step_1"
    write(directory, 3)
    assert sorted(path.name for path in directory.iterdir()) == ["step_1", "step_2.damaged", "step_3"]


def test_a_checkpoint_of_an_earlier_release_has_no_checksums_and_is_used(directory):
    (directory / "step_2" / "trainer" / "checksums.json").unlink()
    assert newest_checkpoint(directory).name == "step_2"


@pytest.mark.parametrize("stray", ["step_3.bak", "step_", "step_three", "step_-1", "step_\u0663"])
def test_a_stray_folder_is_noted_and_passed_over(directory, caplog, stray):
    (directory / stray).mkdir()
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(directory).name == "step_2"
    assert f"{stray} is no checkpoint: expected a name like step_20" in caplog.text
    write(directory, 4)
    assert (directory / stray).exists()


def test_one_beyond_what_the_run_has_made_is_left_where_it_is(directory, caplog):
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(directory, at_most=1).name == "step_1"
    assert "step_2 is not used: the run, as run.db has it, has made 1 versions" in caplog.text
    assert newest_checkpoint(directory, at_most=0) is None
    for version in (2, 3):
        write(directory, version)
    assert sorted(path.name for path in directory.iterdir()) == ["step_2", "step_3"]
    assert json.loads((directory / "step_3" / "trainer" / "checksums.json").read_text()).keys() == {
        "model.safetensors", "trainer/state.safetensors",
    }  # fmt: skip


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_as_many_are_kept_as_asked_for(directory, keep):
    for version in (3, 4, 5):
        write(directory, version, keep)
    assert {path.name for path in directory.iterdir()} == {
        f"step_{v}" for v in range(5, max(5 - keep, 0), -1)
    }
