"""Packing: nothing lost, nothing over budget, little wasted."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.packing_bound import DISTRIBUTIONS, lower_bound
from workers.trainer.packing import pack, plan, plan_padded, split_by_group

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


@given(lengths, st.integers(1, 5), st.integers(1, 600))
def test_padding_counts_where_sequences_of_a_micro_batch_are_padded(lengths, ranks, budget):
    shares = plan_padded(lengths, ranks=ranks, max_tokens=budget)
    assert len(shares) == ranks
    assert len({len(batches) for batches in shares}) == 1
    batches = [batch for batches in shares for batch in batches]
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    padded = [len(batch) * max((lengths[i] for i in batch), default=0) for batch in batches]
    assert all(size <= budget or len(batch) == 1 for size, batch in zip(padded, batches, strict=True))
    assert sum(1 for batch in batches if not batch) < ranks


def fewest(lengths, budget):
    """Micro-batches of the best packing, found by trying all."""
    best = [len(lengths)]

    def place(index, rooms):
        if index == len(lengths):
            best[0] = min(best[0], len(rooms))
        elif len(rooms) < best[0]:
            for number, room in enumerate(rooms):
                if room >= lengths[index]:
                    place(index + 1, [*rooms[:number], room - lengths[index], *rooms[number + 1 :]])
            place(index + 1, [*rooms, budget - lengths[index]])

    place(0, [])
    return best[0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(10, 30))
def test_the_lower_bound_is_one_and_is_met_within_one_by_the_packing(lengths, budget):
    best = fewest(lengths, budget)
    assert lower_bound(lengths, budget) <= best <= len(pack(lengths, max_tokens=budget)) <= best + 1


@pytest.mark.parametrize(
    "name", sorted(DISTRIBUTIONS.keys() - {"around a third"})
)  # up to 1.18: triples must match
@given(st.integers(0, 10**6), st.integers(1, 300), st.sampled_from([256, 1000, 4096]))
@settings(max_examples=40)
def test_micro_batches_are_at_most_a_tenth_more_than_the_lower_bound(name, seed, count, budget):
    rng = random.Random(seed)
    lengths = [DISTRIBUTIONS[name](rng, budget) for _ in range(count)]
    assert len(pack(lengths, max_tokens=budget)) <= math.ceil(1.1 * lower_bound(lengths, budget))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("half_attention", [200, math.inf])
def test_ranks_get_like_work_in_total_and_side_by_side(ranks, half_attention):
    rng = random.Random(0)
    lengths = [min(500, int(20 * rng.paretovariate(1.2))) for _ in range(512)]
    shares = plan(lengths, ranks=ranks, max_tokens=1024, half_attention=half_attention)
    work = [
        [sum(lengths[i] * (1 + lengths[i] / half_attention) for i in batch) for batch in batches]
        for batches in shares
    ]
    assert max(map(sum, work)) <= 1.05 * sum(map(sum, work)) / ranks
    waited = sum(max(side) - min(side) for side in zip(*work, strict=True))
    assert waited <= 0.1 * sum(map(sum, work)) / ranks


def test_a_sequence_longer_than_the_budget_goes_alone():
    assert sorted(pack([5, 30, 5], max_tokens=10)) == [[0, 2], [1]]
    shares = plan([5, 30, 5], ranks=2, max_tokens=10)
    assert sorted(shares) == [[[0, 2]], [[1]]]


def test_a_rank_without_sequences_gets_empty_micro_batches():
    assert plan([5], ranks=2, max_tokens=10) == [[[0]], [[]]]


def test_mini_batches_are_runs_of_whole_groups():
    groups = [7, 7, 3, 3, 3, 9, 4, 4]
    assert split_by_group(groups, 1) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert split_by_group(groups, 2) == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert split_by_group(groups, 9) == [[0, 1], [2, 3, 4], [5], [6, 7]]
