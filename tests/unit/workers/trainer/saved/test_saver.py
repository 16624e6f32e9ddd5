"""Checkpoints of several writers, without the other processes."""

import json

import pytest
import torch
from safetensors.torch import load_file

from protocol.errors import RunError
from tests.unit.workers.trainer.test_trainer import make_batch, model_directory, settings  # noqa: F401 - fixtures
from workers.trainer import checkpoints
from workers.trainer.checkpoints import Among, aside_of, newest_checkpoint, prepare, read_state, write_share
from workers.trainer.checkpoints import write_checkpoint as write_first
from workers.trainer.saved.saver import Saver
from workers.trainer.saved.shares import Share, Shares, share_of, write_shares
from workers.trainer.state import named_tensors, restore_state
from workers.trainer.worker import Trainer, make_trainer

ROWS = torch.arange(12.0).reshape(6, 2)


@pytest.fixture
def two(tmp_path):
    """Begin a checkpoint: calls that write the second rank's share, and the first one's with the rest."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    directory, told = tmp_path / "checkpoints", []

    def begin(version):
        told.clear()
        prepare(directory, version)
        second = Among(1, 2, lambda word: told.append(word) or [])
        first = Among(0, 2, lambda word: [word, *told])
        return (
            lambda: write_share(directory, version, state={"model.w": Share(ROWS[3:], 3)}, among=second),
            lambda: write_first(
                directory, version, model_directory=tmp_path / "model", state={"model.w": Share(ROWS[:3])},
                dtype=torch.float32, keep=2, among=first,
            ),
        )  # fmt: skip

    return directory, begin


def test_it_is_complete_when_all_have_written_and_not_before(two):
    directory, begin = two
    write_second, write = begin(4)
    write_second()
    assert newest_checkpoint(directory) is None
    path = write()
    assert newest_checkpoint(directory) == path
    assert torch.equal(read_state(path)[1]["model.w"], ROWS)
    names = ["model.safetensors", "trainer/state-00001-of-00002.safetensors"]
    names.append("trainer/state-00002-of-00002.safetensors")
    assert sorted(json.loads((path / "trainer/checksums.json").read_text())) == names


@pytest.mark.parametrize("way", ["gone", "flipped", "cut off"])
@pytest.mark.parametrize("rank", [1, 2])
def test_with_a_damaged_share_the_checkpoint_before_it_is_used(two, caplog, way, rank):
    directory, begin = two
    for version in (4, 5):
        for write in begin(version):
            write()
    file = directory / "step_5" / "trainer" / f"state-0000{rank}-of-00002.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    if way == "gone":
        file.unlink()
    else:
        file.write_bytes(content if way == "flipped" else content[:-5])
    assert newest_checkpoint(directory).name == "step_4"
    assert f"step_5 is not used: {file.name}" in caplog.text
    assert "The checkpoint before it is." in caplog.text


def test_a_rank_that_cannot_write_says_so_here_and_at_the_first_rank(two):
    directory, begin = two
    write_second, write = begin(4)
    folder = aside_of(directory, 4) / "trainer"
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(RunError, match=r"step_4 could not be written: .*free some and resume"):
        write_second()
    folder.with_name("elsewhere").rename(folder)
    with pytest.raises(RunError, match=r"rank 1 could not write its part, .*No such file.*; free some"):
        write()
    assert newest_checkpoint(directory) is None


def test_a_share_is_on_the_disk_before_its_rank_says_so(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(checkpoints, "sync", lambda file: done.append(file.name))
    prepare(tmp_path, 4)
    second = Among(1, 2, lambda word: done.append("told") or [])
    write_share(tmp_path, 4, state={"model.w": Share(ROWS[3:], 3)}, among=second)
    assert done == ["state-00002-of-00002.safetensors", "told"]


def test_the_models_file_has_weights_in_its_type_and_counts_in_their_own(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    prepare(tmp_path, 4)
    path = write_first(
        tmp_path, 4, model_directory=tmp_path / "model", dtype=torch.bfloat16, keep=1,
        state={"model.w": Share(ROWS), "model.seen": Share(torch.tensor([300, 5]))},
    )  # fmt: skip
    found = load_file(path / "model.safetensors")
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "w": torch.bfloat16,
        "seen": torch.int64,
    }
    assert found["seen"].tolist() == [300, 5]


@pytest.fixture
def one(model_directory, settings):  # noqa: F811
    """A trainer's settings and its model."""
    return settings(), str(model_directory)


def test_a_checkpoint_of_a_model_with_the_same_names_and_other_sizes_is_refused(one, tmp_path):
    trainer = Trainer(*one)
    weights = named_tensors(trainer.model)
    name, weight = max(weights.items(), key=lambda item: item[1].dim())
    for rows in (len(weight) + 1, 1):  # of the first a rank could take its rows, of the second copies
        state = {f"model.{key}": share_of(tensor, is_first=True) for key, tensor in weights.items()}
        state[f"model.{name}"] = Share(torch.zeros(rows, *weight.shape[1:]))
        write_shares(tmp_path / f"{rows}", state, metadata={})
        with pytest.raises(RunError, match=rf"model\.{name} is of shape \[{rows}, .*in this model"):
            restore_state(trainer.model, trainer._optimizer, trainer.ranks, Shares([tmp_path / f"{rows}"]))


def test_ranks_that_share_no_disk_leave_it_to_the_first_to_write_the_same(one, monkeypatch):
    trainer = Trainer(*one)
    trainer.train_step(*make_batch())
    found = {name: tensor.clone() for name, tensor in read_state(trainer.save_checkpoint(1))[1].items()}
    is_shared = Saver._is_shared
    monkeypatch.setattr(Saver, "_is_shared", lambda self, version: is_shared(self, version) and False)
    gathered = read_state(trainer.save_checkpoint(1))[1]
    assert gathered.keys() == found.keys()
    assert all(torch.equal(gathered[name], tensor) for name, tensor in found.items())
    assert make_trainer(*one).policy_version == 1
