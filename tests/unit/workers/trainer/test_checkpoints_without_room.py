"""A checkpoint without room is told in words and holds none; one that cannot be removed stops no newer."""

import logging
import resource
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch

from protocol.errors import RunError
from workers.trainer.checkpoints import newest_checkpoint, prepare, remove_cut_off, write_checkpoint
from workers.trainer.saved.shares import Share

LARGEST_FILE = 100_000  # bytes


@contextmanager
def no_room():
    """Files of this process end at a size, as if the disk were full: also that which pytest may write to."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def write(folder, version, *, size):
    prepare(folder / "checkpoints", version)
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    return write_checkpoint(
        folder / "checkpoints", version, model_directory=folder / "model", dtype=torch.float32,
        state={"model.weight": Share(torch.zeros(size))}, keep=2,
    )  # fmt: skip


def test_it_is_told_in_words_and_the_one_before_stays(tmp_path):
    before = write(tmp_path, 1, size=10)
    said = r"step_2 could not be written: .*File too large.*free some and resume"
    with no_room(), pytest.raises(RunError, match=said):
        write(tmp_path, 2, size=LARGEST_FILE)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step_1"]  # it holds no room
    assert newest_checkpoint(tmp_path / "checkpoints") == before
    assert write(tmp_path, 2, size=10).name == "step_2"


def names(folder):
    return {entry.name for entry in (folder / "checkpoints").iterdir()}


def test_an_old_one_that_was_moved_behind_a_link_stays_where_it_was_moved_to(tmp_path):
    write(tmp_path, 1, size=10).rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints" / "step_1").symlink_to(tmp_path / "elsewhere")
    for version in (2, 3):
        write(tmp_path, version, size=10)
    assert names(tmp_path) == {"step_2", "step_3"}
    assert (tmp_path / "elsewhere" / "model.safetensors").exists()


def test_an_old_one_that_cannot_be_removed_is_said_and_those_after_it_are_removed(
    tmp_path, monkeypatch, caplog
):
    stuck = write(tmp_path, 1, size=10)
    remove = shutil.rmtree

    def refuse(path, *arguments, **options):
        if path == stuck:
            raise PermissionError(13, "Permission denied", str(path))
        remove(path, *arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with caplog.at_level(logging.WARNING):
        for version in (2, 3, 4, 5):
            assert write(tmp_path, version, size=10).name == f"step_{version}"
    assert names(tmp_path) == {"step_1", "step_4", "step_5"}
    assert caplog.text.count("step_1 could not be removed, and takes room until you do") == 3


def test_what_was_cut_off_is_removed_where_a_trainer_begins_and_not_where_somebody_looks(tmp_path):
    newest = write(tmp_path, 1, size=10)
    prepare(tmp_path / "checkpoints", 2)
    newest.rename(tmp_path / "checkpoints" / ".step_1.replaced.partial")
    assert newest_checkpoint(tmp_path / "checkpoints") is None
    assert names(tmp_path) == {".step_1.replaced.partial", ".step_2.partial"}
    remove_cut_off(tmp_path / "checkpoints")
    assert names(tmp_path) == {".step_1.replaced.partial"}
