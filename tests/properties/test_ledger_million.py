"""The ledger against explicit slots under many random operations: a share of the benchmark's million."""

import pytest

from tests.support.paper_slots import Against, Slots, against_slots, matching


def test_the_ledger_and_explicit_slots_agree_in_every_operation():
    totals = against_slots(120_000, seed=1)
    assert totals["operations"] == 120_000
    assert totals["trained"] > 10_000
    assert totals["refused"] > 10_000
    assert totals["dropped"] > 1_000


@pytest.mark.parametrize("spare", [0, 2])
def test_no_group_is_trained_late_when_nearly_every_start_is_old(spare):
    against = Against(4, 5, spare, seed=9).run(30_000)
    assert against.trained > 2_000


def test_a_ledger_that_admits_one_group_too_many_is_found():
    against = Against(1, 2, 0, seed=3)
    against.ledger.batch_groups = 3
    with pytest.raises(AssertionError):
        against.run(1_000)


def test_a_group_moves_to_a_later_slot_when_another_needs_its_own():
    slots = Slots(0, 1)
    assert slots.add(1, 2)
    assert slots.add(2, 0)
    assert slots.place == {1: 1, 2: 0}
    assert slots.has_room(2)
    assert not slots.has_room(0)
    assert sorted(slots.place) == [1, 2]


def test_no_slots_are_found_where_two_groups_have_one_batch_between_them():
    assert matching({1: (0, 0), 2: (0, 1)}, 1) is not None
    assert matching({1: (1, 1), 2: (1, 1)}, 1) is None
