"""Tensors in shares: written by some ranks, read whole, in part, and by torch's own reader."""

import json
import os
import warnings

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader

from protocol.errors import RunError
from tests.support.allocation import allocation
from workers.trainer.saved.shares import Share, Shares, share_of, stream, write_shares

WHOLE = {
    "model.w": torch.randn(10, 3),
    "model.b": torch.randn(2).bfloat16(),
    "step.w": torch.tensor(7.0),
    "rng.1": torch.arange(9, dtype=torch.uint8),
}


def write(folder, cuts):
    """One file of each rank, whose rows of `model.w` end at these places."""
    files, start = [], 0
    for rank, end in enumerate(cuts):
        shares = {"model.w": Share(WHOLE["model.w"][start:end].contiguous(), start)} if end > start else {}
        if rank == 0:
            shares |= {name: Share(tensor) for name, tensor in WHOLE.items() if name != "model.w"}
        files.append(folder / f"state-{rank}.safetensors")
        write_shares(files[-1], shares, metadata={"policy_version": "3"})
        start = end
    return files


@pytest.mark.parametrize("cuts", [(10,), (5, 10), (4, 8, 10), (3, 6, 9, 10), (10, 10)])
def test_any_rows_of_any_number_of_writers_are_read(tmp_path, cuts):
    found = Shares(reversed(write(tmp_path, cuts)))
    assert found.metadata["policy_version"] == "3"
    assert found.keys() == WHOLE.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in WHOLE.items())
    assert found.shape("model.w") == [10, 3]
    assert found.dtype("model.b") == torch.bfloat16
    for start in range(10):
        for end in range(start + 1, 11):
            assert torch.equal(found.part("model.w", start, end - start), WHOLE["model.w"][start:end])


def test_rows_that_are_all_that_is_left_are_not_taken_for_the_whole(tmp_path):
    first, second = write(tmp_path, (4, 10))
    del first
    with pytest.raises(RunError, match=r"lacks rows 0 to 10 of model.w"):
        Shares([second])["model.w"]
    assert torch.equal(Shares([second]).part("model.w", 4, 6), WHOLE["model.w"][4:])


def test_a_rank_writes_its_copy_of_what_is_not_sharded_only_if_it_is_the_first():
    tensor = torch.arange(3.0, requires_grad=True)
    assert share_of(tensor, is_first=False) is None
    share = share_of(tensor, is_first=True)
    assert (share.start, share.rows.tolist(), share.rows.requires_grad) == (0, [0.0, 1.0, 2.0], False)
    with torch.no_grad():
        tensor += 1
    assert share.rows.tolist() == [0.0, 1.0, 2.0]  # a copy


def test_tensors_of_a_stream_begin_where_their_type_may(tmp_path):
    shapes = {"a": (torch.uint8, (3,)), "b": (torch.float64, (2,)), "c": (torch.bfloat16, (1,))}
    tensors = {name: torch.ones(shape, dtype=dtype) for name, (dtype, shape) in shapes.items()}
    stream(tmp_path / "f", shapes, tensors.__getitem__, metadata={})
    content = (tmp_path / "f").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert size % 8 == 0
    for name, (dtype, _) in shapes.items():
        assert header[name]["data_offsets"][0] % dtype.itemsize == 0
    assert load_file(tmp_path / "f").keys() == tensors.keys()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_rows_of_a_file_that_is_missing_are_named(tmp_path, lost):
    files = write(tmp_path, (4, 8, 10))
    del files[lost]
    if lost < 2:
        with pytest.raises(RunError, match=r"lacks rows \d to 10 of model.w; expected the files"):
            Shares(files)["model.w"]
    else:
        assert Shares(files).shape("model.w") == [8, 3]  # what the list of checksums is for
    with pytest.raises(RunError, match=r"lacks rows \d to 10 of model.w"):
        Shares(files).part("model.w", 0, 10)


def test_torchs_own_reader_of_distributed_checkpoints_takes_the_files_up(tmp_path):
    write(tmp_path, (4, 8, 10))
    state = {name: torch.zeros_like(WHOLE[name]) for name in ("model.w", "model.b")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is distributed here
        torch.distributed.checkpoint.load(state, storage_reader=HuggingFaceStorageReader(str(tmp_path)))
    assert all(torch.equal(tensor, WHOLE[name]) for name, tensor in state.items())


def test_a_stream_is_the_file_that_safetensors_reads_with_one_tensor_in_memory(tmp_path):
    tensors = {f"w{n}": torch.randn(1000, 10) for n in range(8)} | {"b": torch.ones(3), "s": torch.ones(())}
    shapes = {name: (torch.bfloat16, tensor.shape) for name, tensor in tensors.items()}
    shapes["s"] = (torch.float32, ())
    file = tmp_path / "model.safetensors"

    def write():
        stream(file, shapes, lambda name: tensors[name].clone(), metadata={"format": "pt"})

    assert allocation(write).peak <= 3 * 40_000
    found = load_file(file)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name].to(shapes[name][0])) for name in tensors)
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert os.path.getsize(file) % 2 == 0


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o644), (0o775, 0o664), (0o700, 0o600)])
def test_who_may_read_the_folder_may_read_the_file_which_safetensors_gives_to_its_owner_alone(
    tmp_path, folder, file
):
    """A trainer of another user of the group resumes from it."""
    tmp_path.chmod(folder)
    write_shares(tmp_path / "rank.safetensors", {"a": Share(torch.ones(2), 0)}, metadata={})
    assert (tmp_path / "rank.safetensors").stat().st_mode & 0o777 == file
