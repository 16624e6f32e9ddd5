"""The ledgers of other systems: which groups each of them trains next, and which it drops."""

import pytest

from controller.core.state.batches.counting_ledger import CountingLedger


@pytest.mark.parametrize(
    ("order", "batches"),
    [
        ("arrival", [[1, 2], [3, 4]]),  # as they started
        ("completion", [[4, 3], [2, 1]]),  # as they ended
        ("floor", [[2, 3], [4, 1]]),  # the oldest version first, of equals as they started
    ],
)
def test_each_order_trains_the_groups_that_it_says(order, batches):
    ledger = CountingLedger(order, max_staleness=9, batch_groups=2)
    for group, version in ((1, 5), (2, 3), (3, 3), (4, 4)):
        ledger.reserve(group, version)
    assert ledger.ready_batch() is None
    for group in (4, 3, 2, 1):
        ledger.occupy(group)
    for batch in batches:
        assert ledger.ready_batch() == batch
        ledger.consume(batch)
    assert ledger.ready_batch() is None


@pytest.mark.parametrize(("order", "useless"), [("arrival", []), ("completion", []), ("floor", [1, 3])])
def test_only_the_floor_drops_what_is_beyond_the_bound(order, useless):
    ledger = CountingLedger(order, max_staleness=2, batch_groups=1)
    for group, version in ((1, 0), (2, 1), (3, 0)):
        ledger.reserve(group, version)
    ledger.occupy(3)
    ledger.begin_at(2)
    assert ledger.useless() == []
    ledger.begin_at(3)
    assert sorted(ledger.useless()) == useless
    assert ledger.can_reserve(1)
    assert ledger.can_reserve(0) == (order != "floor")
