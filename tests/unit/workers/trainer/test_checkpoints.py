"""Checkpoints that are whole or not there, wherever writing them ends."""

import errno
import json
import logging
import os
import sys
from itertools import count

import pytest
import torch

from protocol.errors import RunError
from workers.trainer import checkpoints
from workers.trainer.checkpoints import newest_checkpoint, prepare, read_state, write_checkpoint
from workers.trainer.saved.shares import Share


class Killed(BaseException):
    """The process has ended here."""


@pytest.fixture
def model_directory(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return directory


@pytest.fixture
def write(tmp_path, model_directory):
    def write(version):
        prepare(tmp_path / "checkpoints", version)
        return write_checkpoint(
            tmp_path / "checkpoints",
            version,
            model_directory=model_directory,
            state={"model.weight": Share(torch.full((3,), float(version)))},
            dtype=torch.float32,
            keep=2,
        )

    return write


def run_lines(call, lines):
    """Whether `call` returned before it had run this many lines of workers/trainer/checkpoints.py."""
    left = lines

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != checkpoints.__file__:
            return None
        left -= event == "line"
        if left < 0:
            raise Killed
        return trace

    sys.settrace(trace)
    try:
        call()
    except Killed:
        return False
    finally:
        sys.settrace(None)
    return True


def test_a_writer_killed_at_any_line_leaves_the_checkpoint_before_or_the_new_one(write, tmp_path):
    directory = tmp_path / "checkpoints"
    held = write(1)
    found = []
    for lines in count():
        is_done = run_lines(lambda: write(2), lines)
        newest = newest_checkpoint(directory)
        version, state = read_state(newest)
        assert newest.name == f"step_{version}"
        assert state["model.weight"].tolist() == [version] * 3
        assert held.exists()
        found.append(version)
        if is_done:
            break
        for path in (directory / "step_2", directory / ".step_2.partial"):  # begin as before
            if path.exists() and version == 2:
                path.rename(tmp_path / f"{path.name}.{lines}")
    assert len(found) > 30
    assert {1, 2} == set(found)
    assert found == sorted(found)
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("lost", [".complete", "model.safetensors", "trainer/state.safetensors"])
def test_a_checkpoint_that_is_cut_off_is_passed_over_and_named(write, caplog, lost):
    write(1)
    path = write(2)
    assert newest_checkpoint(path.parent) == path
    file = path / lost
    file.write_bytes(file.read_bytes()[:-3])
    if lost == ".complete":
        file.unlink()
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(path.parent).name == "step_1"
    assert "step_2 is not used: " in caplog.text
    assert file.name in caplog.text


def test_a_checkpoint_on_a_bad_block_is_passed_over_and_named(write, caplog, monkeypatch):
    write(1)
    path = write(2)
    bad, read = (path / "trainer/state.safetensors").stat().st_ino, os.read

    def read_from_a_bad_disk(descriptor, size):
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, size)

    monkeypatch.setattr(checkpoints.os, "read", read_from_a_bad_disk)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(path.parent).name == "step_1"
    assert "step_2 is not used: " in caplog.text
    assert "state.safetensors cannot be read" in caplog.text


def test_a_disk_that_fails_for_a_moment_does_not_make_a_trainer_begin_anew(write, monkeypatch):
    path = write(1)

    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "listdir", fails)  # what Path.iterdir asks, up to Python 3.13
    monkeypatch.setattr(os, "scandir", fails)
    with pytest.raises(OSError, match="Input/output error"):
        newest_checkpoint(path.parent)


def test_only_the_newest_are_kept_and_ten_is_newer_than_nine(write):
    for version in (8, 9, 10):
        path = write(version)
    assert newest_checkpoint(path.parent) == path
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["step_10", "step_9"]
    assert newest_checkpoint(path.parent / "nothing") is None


def test_a_model_that_is_gone_is_told_of_and_no_disk(write, model_directory):
    (model_directory / "config.json").unlink()
    no_config = r"\(\[Errno 2\] .*\): .*/model, .* has no config\.json any more\. Put the model back"
    with pytest.raises(RunError, match=no_config):
        write(1)
    model_directory.rmdir()
    with pytest.raises(RunError, match=r"no config\.json any more"):
        write(2)


def test_a_disk_without_room_is_told_of_also_where_the_model_is_gone(write, model_directory, monkeypatch):
    def without_room(*folders):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (model_directory / "config.json").unlink()
    monkeypatch.setattr("workers.trainer.checkpoints._copy_small_files", without_room)
    with pytest.raises(RunError, match=r"No space left on device\. Expected a writable directory"):
        write(1)


def test_a_checkpoint_has_all_chat_templates_of_the_model(write, model_directory):
    (model_directory / "chat_template.jinja").write_text("first")
    (model_directory / "additional_chat_templates").mkdir()
    (model_directory / "additional_chat_templates" / "tool_use.jinja").write_text("second")
    path = write(1)
    assert (path / "chat_template.jinja").read_text() == "first"
    assert (path / "additional_chat_templates" / "tool_use.jinja").read_text() == "second"
