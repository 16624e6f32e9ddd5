"""Who only looks at a ledger leaves it as it was, so that an image does not depend on who has looked."""

from collections.abc import Callable
from copy import deepcopy

import pytest

from controller.core.state.ledger import Ledger

CHANGES: list[Callable[[Ledger], object]] = [
    lambda ledger: ledger.begin_at(2),
    lambda ledger: [ledger.reserve(group, min(group, 2)) for group in range(4)],
    lambda ledger: ledger.lower(3, 1),
    lambda ledger: [ledger.occupy(group) for group in (0, 1, 3)],
    lambda ledger: ledger.settle(),
    lambda ledger: ledger.consume([0, 1]),
    lambda ledger: [ledger.release(group) for group in (2, 3)],
]


def look(ledger: Ledger) -> None:
    """In every way that a ledger can be looked at."""
    for version in range(ledger.train_version + 1):
        ledger.can_reserve(version)
        ledger.reach(version)
    for group in ledger._reserved:
        ledger.can_lower(group, ledger.train_version)
    ledger.ready_batch()
    ledger.is_ready()
    ledger.useless()
    ledger.buffers()
    ledger.blockers()
    ledger.check()


@pytest.mark.parametrize("changes", range(len(CHANGES) + 1))
def test_looking_changes_nothing(changes):
    ledger = Ledger(max_staleness=2, batch_groups=2)
    for change in CHANGES[:changes]:
        change(ledger)
    untouched = deepcopy(vars(ledger))
    look(ledger)
    assert vars(ledger) == untouched
