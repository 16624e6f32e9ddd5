"""A checkpoint for which the disk has no room is told in words, and the one before it stays."""

import resource
import signal

import pytest
import torch

from protocol.errors import RunError
from workers.trainer.checkpoints import newest_checkpoint, prepare, write_checkpoint
from workers.trainer.saved.shares import Share

LARGEST_FILE = 100_000  # bytes


@pytest.fixture
def no_room():
    """Files of this process end at a size, as if the disk were full."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, limits[1]))
    yield
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


def test_it_is_told_in_words_and_the_one_before_stays(tmp_path, no_room):
    before = write(tmp_path, 1, size=10)
    with pytest.raises(
        RunError, match=r"step_2 could not be written: .*File too large.*free some and resume"
    ):
        write(tmp_path, 2, size=LARGEST_FILE)
    assert newest_checkpoint(tmp_path / "checkpoints") == before
    assert write(tmp_path, 2, size=10).name == "step_2"
