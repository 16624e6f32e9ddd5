"""Packing: nothing lost, nothing over budget, little wasted."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.packing import balance, pack, plan, split_by_group

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)


@given(lengths, st.integers(1, 600), st.integers(1, 8))
def test_every_sequence_is_packed_once_and_within_the_budget(lengths, budget, at_least):
    batches = pack(lengths, max_tokens=budget, at_least=at_least)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) <= budget or len(batch) == 1 for batch in batches)
    assert len(batches) >= min(at_least, len(lengths))
    assert all(batches)


@given(lengths, st.integers(1, 5), st.integers(1, 600))
def test_ranks_share_every_sequence_in_equally_many_micro_batches(lengths, ranks, budget):
    shares = plan(lengths, ranks=ranks, max_tokens=budget)
    assert len(shares) == ranks
    assert len({len(batches) for batches in shares}) == 1
    packed = [index for batches in shares for batch in batches for index in batch]
    assert sorted(packed) == list(range(len(lengths)))
    batches = [batch for batches in shares for batch in batches]
    assert all(sum(lengths[i] for i in batch) <= budget or len(batch) == 1 for batch in batches)


@pytest.mark.parametrize("seed", range(20))
def test_skewed_lengths_need_at_most_a_tenth_more_micro_batches_than_their_tokens(seed):
    rng = random.Random(seed)
    lengths = [min(1024, int(20 * rng.paretovariate(1.2))) for _ in range(512)]
    bound = math.ceil(sum(lengths) / 2048)
    assert len(pack(lengths, max_tokens=2048)) <= 1.1 * bound


def test_ranks_get_nearly_equal_work():
    rng = random.Random(0)
    lengths = [min(500, int(20 * rng.paretovariate(1.2))) for _ in range(256)]
    loads = [sum(lengths[i] for i in share) for share in balance(lengths, 4)]
    assert max(loads) <= 1.01 * sum(loads) / 4


def test_a_rank_without_sequences_gets_empty_micro_batches():
    assert plan([5], ranks=2, max_tokens=10) == [[[0]], [[]]]


def test_mini_batches_are_runs_of_whole_groups():
    groups = [7, 7, 3, 3, 3, 9, 4, 4]
    assert split_by_group(groups, 1) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert split_by_group(groups, 2) == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert split_by_group(groups, 9) == [[0, 1], [2, 3, 4], [5], [6, 7]]
