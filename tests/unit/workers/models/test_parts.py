"""An expert's rows are found where they lie, on the rank that has them and on no other."""

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from workers.models.parts import SpreadPart, TensorPart
from workers.weights.tensors import layout_of, write_shard

EXPERTS, ROWS, COLUMNS = 5, 6, 3
WHOLE = torch.arange(EXPERTS * ROWS * COLUMNS, dtype=torch.float32).view(EXPERTS, ROWS, COLUMNS)
RANKS = 3  # of which the last has one expert


def share(rank):
    """What a rank holds of the whole, as FSDP spreads it; nobody is asked, so there are no other ranks."""
    mesh = DeviceMesh("cpu", torch.arange(RANKS), _init_backend=False, _rank=rank)
    mine = WHOLE.chunk(RANKS)[rank]
    return DTensor.from_local(
        mine, mesh, [Shard(0)], run_check=False, shape=WHOLE.shape, stride=WHOLE.stride()
    )


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_expert_is_written_by_the_rank_that_has_it(rank):
    whole = share(rank)
    for expert in range(EXPERTS):
        piece = SpreadPart(whole, TensorPart("experts", expert, start=2, count=3))
        assert piece.shape == (3, COLUMNS)
        assert piece.owner == expert // 2
        target = torch.full((3, COLUMNS), -1.0)
        write_shard(target, piece)
        expected = WHOLE[expert, 2:5] if expert // 2 == rank else torch.full((3, COLUMNS), -1.0)
        assert torch.equal(target, expected)


def test_of_a_tensor_that_nobody_shares_every_part_is_here_and_nothing_is_copied():
    piece = SpreadPart(WHOLE, TensorPart("experts", 4, start=0, count=2))
    assert torch.equal(piece.local(), WHOLE[4, :2])
    assert piece.local().untyped_storage().data_ptr() == WHOLE.untyped_storage().data_ptr()
    layout = layout_of(1, {"experts.4.gate": piece, "whole": WHOLE}, dtype=torch.bfloat16)
    assert [(entry.dtype, tuple(entry.shape)) for entry in layout.entries.values()] == [
        ("BF16", (2, COLUMNS)),
        ("BF16", tuple(WHOLE.shape)),
    ]


def test_a_whole_part_is_the_tensor_itself():
    assert TensorPart("name").of(WHOLE) is WHOLE
    assert TensorPart("name").shape(WHOLE.shape) == tuple(WHOLE.shape)
