"""The ledger by deadlines against brute force: an explicit assignment of groups to slots of future
batches."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.core.state.ledger import Ledger


def has_slot_assignment(deadlines: list[int], *, train_version: int, batch_groups: int) -> bool:
    """Whether every group can get a slot of its own in a batch no later than its deadline
    (augmenting paths)."""
    slots = [
        (u, i)
        for u in range(train_version, max(deadlines, default=train_version) + 1)
        for i in range(batch_groups)
    ]
    owner: dict[tuple[int, int], int] = {}

    def place(group: int, seen: set[tuple[int, int]]) -> bool:
        for slot in slots:
            if slot[0] <= deadlines[group] and slot not in seen:
                seen.add(slot)
                if slot not in owner or place(owner[slot], seen):
                    owner[slot] = group
                    return True
        return False

    return all(place(group, set()) for group in range(len(deadlines)))


class Pair:
    """The ledger under test and the plain list of what is in it."""

    def __init__(self, max_staleness: int, batch_groups: int) -> None:
        self.ledger = Ledger(max_staleness=max_staleness, batch_groups=batch_groups)
        self.deadlines: dict[int, int] = {}
        self.occupied: set[int] = set()
        self.settled: set[int] = set()
        self.next_group = 0

    def fits(self, deadlines: list[int]) -> bool:
        t, b = self.ledger.train_version, self.ledger.batch_groups
        return all(d >= t for d in deadlines) and has_slot_assignment(
            deadlines, train_version=t, batch_groups=b
        )

    def reserve(self, age: int) -> None:
        version = max(0, self.ledger.train_version - age)
        deadline = version + self.ledger.max_staleness
        possible = self.fits([*self.deadlines.values(), deadline])
        assert self.ledger.can_reserve(version) == possible
        assert (self.ledger.headroom(version) > 0) == possible
        if possible:
            self.ledger.reserve(self.next_group, version)
            self.deadlines[self.next_group] = deadline
            self.next_group += 1

    def lower(self, group: int, by: int) -> None:
        version = max(0, self.deadlines[group] - self.ledger.max_staleness - by)
        deadline = min(self.deadlines[group], version + self.ledger.max_staleness)
        others = [due for other, due in self.deadlines.items() if other != group]
        possible = self.fits([*others, deadline])
        assert self.ledger.can_lower(group, version) == possible
        if possible:
            self.ledger.lower(group, version)
            self.deadlines[group] = deadline

    def consume(self) -> bool:
        batch = self.ledger.ready_batch()
        assert (batch is not None) == self.any_batch_is_possible()
        if batch is None:
            return False
        assert len(batch) == self.ledger.batch_groups
        assert all(self.deadlines[group] >= self.ledger.train_version for group in batch)
        self.ledger.consume(batch)
        assert self.settled <= set(batch), "what was certain to be in this batch is not"
        self.settled.clear()
        for group in batch:
            self.occupied.discard(group)
            del self.deadlines[group]
        return True

    def settle(self) -> None:
        """What is settled is due now, and is no more and no fewer than the earliest deadlines allow."""
        before = dict(self.deadlines)
        settled = self.ledger.settle()
        for group, due in before.items():
            earlier = sum(other < due for other in before.values())
            alike = [g for g in settled if before[g] == due]
            assert len(alike) <= max(0, self.ledger.batch_groups - earlier)
            if group in self.occupied and group not in settled:
                assert len(alike) == max(0, self.ledger.batch_groups - earlier)
        self.settled |= set(settled)
        assert self.settled <= set(settled), "what was certain is not any more"
        self.deadlines |= dict.fromkeys(settled, self.ledger.train_version)
        assert self.fits(list(self.deadlines.values()))

    def any_batch_is_possible(self) -> bool:
        """Whether some choice of occupied groups leaves the rest a slot each from the next version on."""
        from itertools import combinations

        t, b = self.ledger.train_version, self.ledger.batch_groups
        for chosen in combinations(sorted(self.occupied), b):
            rest = [due for group, due in self.deadlines.items() if group not in chosen]
            if all(due > t for due in rest) and has_slot_assignment(
                rest, train_version=t + 1, batch_groups=b
            ):
                return True
        return False


@settings(max_examples=150)
@given(st.integers(0, 4), st.integers(1, 3), st.integers(0, 2**32))
def test_the_ledger_agrees_with_explicit_slots(max_staleness, batch_groups, seed):
    rng = random.Random(seed)
    pair = Pair(max_staleness, batch_groups)
    for _ in range(40):
        reserved = sorted(set(pair.deadlines) - pair.occupied)
        match rng.choice(
            ["reserve", "reserve", "reserve", "occupy", "occupy", "consume", "abort", "lower", "settle"]
        ):
            case "reserve":
                pair.reserve(rng.randrange(max_staleness + 2))
            case "occupy" if reserved:
                group = rng.choice(reserved)
                pair.ledger.occupy(group)
                pair.occupied.add(group)
            case "abort" if pair.deadlines:
                group = rng.choice(sorted(pair.deadlines))
                pair.ledger.release(group)
                pair.occupied.discard(group)
                pair.settled.discard(group)
                del pair.deadlines[group]
            case "lower" if reserved:
                pair.lower(rng.choice(reserved), rng.randrange(3))
            case "consume":
                pair.consume()
            case "settle":
                pair.settle()
        pair.ledger.check()


@pytest.mark.parametrize("max_staleness", range(5))
def test_no_group_outlives_its_deadline_in_a_long_random_run(max_staleness):
    rng = random.Random(max_staleness)
    ledger = Ledger(max_staleness=max_staleness, batch_groups=8)
    versions: dict[int, int] = {}
    reserved: list[int] = []
    consumed = 0
    for group in range(40_000):
        version = rng.randint(max(0, ledger.train_version - max_staleness), ledger.train_version)
        if ledger.can_reserve(version):
            ledger.reserve(group, version)
            versions[group] = version
            reserved.append(group)
        if reserved and (rng.random() < 0.7 or not ledger.can_reserve(ledger.train_version)):
            place = rng.randrange(len(reserved))
            reserved[place], reserved[-1] = reserved[-1], reserved[place]
            ledger.occupy(reserved.pop())
        batch = ledger.ready_batch()
        if batch is not None:
            assert all(ledger.train_version - versions[g] <= max_staleness for g in batch)
            ledger.consume(batch)
            consumed += 1
        assert len(ledger) <= (max_staleness + 1) * 8
    ledger.check()
    assert consumed > 1000


def test_groups_are_certain_once_no_earlier_deadline_can_displace_them():
    ledger = Ledger(max_staleness=2, batch_groups=2)
    for group in range(3):
        ledger.reserve(group, 0)
    ledger.occupy(2)
    assert ledger.settle() == [2]  # of equal deadlines those that are complete
    assert ledger.deadline(2) == 0
    ledger.occupy(1)
    ledger.occupy(0)
    assert ledger.settle() == [2, 1]
    assert ledger.ready_batch() == [1, 2]


def test_a_group_is_not_certain_while_earlier_deadlines_may_fill_the_batch():
    ledger = Ledger(max_staleness=1, batch_groups=2, train_version=4)
    for group, version in enumerate((3, 3, 4)):
        ledger.reserve(group, version)
    ledger.occupy(2)
    assert ledger.settle() == []
    ledger.release(0)
    assert ledger.settle() == [2]
    assert not ledger.can_reserve(3)  # a late start under an old version would displace it
    ledger.occupy(1)
    assert ledger.ready_batch() == [1, 2]


def test_a_straggler_due_now_holds_the_batch_back():
    ledger = Ledger(max_staleness=1, batch_groups=2)
    for group in range(4):
        ledger.reserve(group, 0)
    for group in (1, 2, 3):
        ledger.occupy(group)
    ledger.consume(ledger.ready_batch())
    assert ledger.blockers() == [0]
    ledger.reserve(4, 1)
    ledger.occupy(4)
    assert ledger.ready_batch() is None
    ledger.occupy(0)
    assert sorted(ledger.ready_batch()) == [0, 3]


def test_the_worked_example_of_the_paper_admits_and_denies_at_the_same_points():
    """max_staleness 1, batches of 3; g7 of version 0 is the first to be denied."""
    ledger = Ledger(max_staleness=1, batch_groups=3)
    for group in (1, 2, 3, 4):
        ledger.reserve(group, 0)
    ledger.occupy(2)
    ledger.occupy(1)
    ledger.reserve(5, 0)
    ledger.reserve(6, 0)
    assert not ledger.can_reserve(0)
    ledger.occupy(5)
    assert ledger.ready_batch() == [1, 2, 5]
    ledger.consume([1, 2, 5])
    ledger.reserve(7, 1)
    ledger.reserve(8, 1)
    ledger.occupy(3)
    ledger.occupy(7)
    assert ledger.ready_batch() is None  # g4 and g6 are due now: g7 cannot take their slots
    ledger.occupy(4)
    ledger.occupy(6)
    assert ledger.ready_batch() == [3, 4, 6]
