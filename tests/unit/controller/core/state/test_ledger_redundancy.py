"""Spare groups: when work has become useless, and not a moment before."""

import random

from controller.core.state.ledger import Ledger


def test_generating_groups_are_useless_once_occupied_ones_fill_every_batch_in_reach():
    ledger = Ledger(max_staleness=1, batch_groups=2, spare_groups=1)
    for group in range(6):
        ledger.reserve(group, 0)
    assert not ledger.can_reserve(0)
    for group in (0, 1, 2):
        ledger.occupy(group)
        assert ledger.useless() == []
    ledger.occupy(3)
    assert ledger.useless() == [4, 5]


def test_what_is_past_its_deadline_is_useless_generated_or_not():
    ledger = Ledger(max_staleness=0, batch_groups=2, spare_groups=2)
    for group in range(4):
        ledger.reserve(group, 0)
    for group in (0, 1, 2):
        ledger.occupy(group)
    ledger.consume(ledger.ready_batch())
    assert ledger.useless() == [2, 3]


def test_an_aborted_group_had_no_place_left_and_a_kept_one_has():
    """Brute force: a group is useless when occupied ones alone fill all batches until its deadline."""
    rng = random.Random(7)
    for _ in range(300):
        ledger = Ledger(max_staleness=rng.randrange(4), batch_groups=rng.randint(1, 3), spare_groups=2)
        due = {}
        for group in range(30):
            version = rng.randrange(ledger.max_staleness + 1)
            if version <= ledger.train_version and ledger.can_reserve(version):
                ledger.reserve(group, version)
                due[group] = ledger.deadline(group)
            if rng.random() < 0.2 and (batch := ledger.ready_batch()):
                ledger.consume(batch)
                for gone in (*batch, *ledger.useless()):
                    due.pop(gone, None)
                for gone in ledger.useless():
                    ledger.release(gone)
            reserved = [g for g in due if g in ledger._reserved]
            if reserved and rng.random() < 0.6:
                ledger.occupy(rng.choice(reserved))
        occupied = sorted(due[g] for g in due if g in ledger._occupied)
        useless = set(ledger.useless())
        for group in (g for g in due if g in ledger._reserved):
            slots = [
                u for u in range(ledger.train_version, due[group] + 1) for _ in range(ledger.batch_groups)
            ]
            left = list(occupied)
            for slot in slots:
                fitting = [d for d in left if d >= slot]
                if not fitting:
                    break
                left.remove(min(fitting))
            else:
                assert group in useless, (ledger.due_counts(), occupied, group)
                continue
            assert group not in useless, (ledger.due_counts(), occupied, group)
