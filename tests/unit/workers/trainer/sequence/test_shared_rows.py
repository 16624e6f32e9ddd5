"""Rows that ranks share: each token and each sampled token is one rank's, whatever the lengths."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plain_batches import plain_batch
from workers.trainer.losses import KeptTokens
from workers.trainer.packed_forward import pack_row
from workers.trainer.sequence.shared_rows import my_part

CPU = torch.device("cpu")


class Place:
    """A rank's place in a group of so many."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def part(self, length):
        each = -(-length // self.size)
        return self.rank * each, each


def row_of(shapes):
    """A row of sequences: (prompt, response) tokens each."""
    lengths = [prompt + response for prompt, response in shapes]
    batch = plain_batch(
        tokens=[np.arange(length) + 100 * place for place, length in enumerate(lengths)],
        positions=[np.arange(prompt, prompt + response) for prompt, response in shapes],
    )
    return pack_row(batch, range(len(lengths)), CPU)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=6), st.sampled_from([2, 3, 4]))
def test_the_parts_of_a_row_are_the_row(shapes, size):
    row = row_of(shapes)
    found = [my_part(row, Place(rank, size)) for rank in range(size)]
    parts = [part for part, _ in found]
    length, width = row.tokens_1T.shape[1], parts[0].tokens_1T.shape[1]
    assert all(part.tokens_1T.shape == part.positions_1T.shape == (1, width) for part in parts)
    assert all(sum(part.lengths) == size * width for part in parts)
    assert all(part.lengths[: len(row.lengths)] == row.lengths for part in parts)
    for name in ("tokens_1T", "positions_1T"):
        assert torch.equal(
            torch.cat([getattr(part, name) for part in parts], 1)[:, :length], getattr(row, name)
        )
    for name in ("targets_N", "places_N"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(row, name))
    assert [place.start for _, place in found][1:] == [place.stop for _, place in found][:-1]
    predicting = [part.predicting_N + rank * width for rank, part in enumerate(parts)]
    assert torch.equal(torch.cat(predicting), row.predicting_N)
    assert all(((part.predicting_N >= 0) & (part.predicting_N < width)).all() for part in parts)


@pytest.mark.parametrize("size", [2, 3])
def test_what_tokens_were_drawn_from_goes_with_them(size):
    row = row_of([(3, 4), (1, 6)])
    codes, words = np.asarray([2, 0, 1, 0, 0, 3, 1, 0, 0, 2], "<i4"), np.arange(9, dtype="<i4")
    whole = KeptTokens.of(codes, words)
    row = type(row)(
        row.tokens_1T, row.positions_1T, row.lengths, row.predicting_N, row.targets_N, row.places_N, whole
    )
    expected = whole.cut_off(slice(0, 10), 12, CPU)
    parts = [my_part(row, Place(rank, size))[0] for rank in range(size)]
    counts = [len(part.targets_N) for part in parts]
    found = [part.kept.cut_off(slice(0, count), 12, CPU) for part, count in zip(parts, counts, strict=True)]
    assert torch.equal(torch.cat(found), expected)
