"""What is told of the buffers is what the ledger does: READY is consumed in turn, free places are taken."""

import random
from copy import deepcopy

import pytest

from controller.core.state.batches.counting_ledger import CountingLedger
from controller.core.state.ledger import Ledger


def random_ledger(rng, bound, size, spare):
    """A strict ledger after some history."""
    ledger = Ledger(max_staleness=bound, batch_groups=size, spare_groups=spare, train_version=bound)
    reserved, groups = [], 0
    for _ in range(rng.randrange(60)):
        match rng.choice(["reserve", "reserve", "occupy", "occupy", "abort", "consume"]):
            case "reserve":
                version = ledger.train_version - rng.randrange(bound + 1)
                if ledger.can_reserve(version):
                    ledger.reserve(groups, version)
                    reserved.append(groups)
                    groups += 1
            case "occupy" if reserved:
                ledger.occupy(reserved.pop(rng.randrange(len(reserved))))
            case "abort" if reserved and rng.random() < 0.3:
                ledger.release(reserved.pop(rng.randrange(len(reserved))))
            case "consume" if (batch := ledger.ready_batch()) is not None:
                ledger.consume(batch)
        for group in ledger.useless():
            ledger.release(group)
            if group in reserved:
                reserved.remove(group)
    return ledger


@pytest.mark.parametrize("spare", [0, 1])
def test_buffers_tell_which_batches_could_be_taken_one_after_another_and_where_groups_may_start(spare):
    seen = set()
    for seed in range(600):
        rng = random.Random(seed)
        ledger = random_ledger(rng, rng.randrange(4), rng.randrange(1, 4), spare)
        buffers, ahead = ledger.buffers(), deepcopy(ledger)
        assert [b.train_version for b in buffers] == list(ledger._window())
        is_in_turn = True
        for buffer in buffers:
            assert buffer.free == ledger.headroom(buffer.train_version - ledger.max_staleness)
            assert "READY" not in buffer.state or buffer.occupied == ledger.batch_groups
            is_in_turn = is_in_turn and ahead.is_ready()
            if is_in_turn:
                assert "READY" in buffer.state, (seed, buffer)
                ahead.consume(ahead.ready_batch())
            elif buffer is buffers[0]:
                assert buffer.state in ("STUCK", "PENDING"), (seed, buffer)
            assert (buffer.state in ("STUCK", "READY")) == (buffer.free == 0)
            seen.add(buffer.state)
        assert sum(b.reserved for b in buffers) == ledger.reserved
        assert sum(b.occupied for b in buffers) == ledger.occupied
    assert seen == {"READY", "READY_WITH_CAPACITY", "STUCK", "PENDING"}


def test_a_ledger_without_deadlines_tells_of_the_next_batch_alone():
    ledger = CountingLedger("arrival", max_staleness=2, batch_groups=1)
    ledger.reserve(0, 0)
    (buffer,) = ledger.buffers()
    assert (buffer.state, buffer.occupied, buffer.reserved, buffer.free) == ("PENDING", 0, 1, -1)
    ledger.occupy(0)
    assert ledger.buffers()[0].state == "READY_WITH_CAPACITY"
