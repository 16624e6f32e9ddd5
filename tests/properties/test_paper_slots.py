"""The ledger by deadlines against the paper's own protocol: buffers, slots, and the movement of reservations.

The oracle below is the protocol as published, without redundancy: reserve the latest slot, occupy the
earliest, and move a reservation into the hole that is left. docs/ledger.md proves what is checked here.
"""

import random
from dataclasses import dataclass, field

import pytest

from controller.core.state.ledger import Ledger

RESERVED, OCCUPIED = "r", "O"
Entry = tuple[str, int] | None  # RESERVED or OCCUPIED, and the group


@dataclass
class PaperSlots:
    """Staleness buffers of `size` entries; buffer b is the batch that version b is trained on."""

    max_staleness: int
    size: int
    train_version: int = 0
    buffers: dict[int, list[Entry]] = field(default_factory=dict)
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    version: dict[int, int] = field(default_factory=dict)

    def window(self, version: int) -> list[list[Entry]]:
        """Buffers that a group of this version may be in, earliest first."""
        return [self.buffer(b) for b in self.window_ids(version)]

    def window_ids(self, version: int) -> range:
        return range(max(version, self.train_version), version + self.max_staleness + 1)

    def buffer(self, b: int) -> list[Entry]:
        return self.buffers.setdefault(b, [None] * self.size)

    def status(self, b: int) -> str:
        if all(entry is not None and entry[0] == OCCUPIED for entry in self.buffer(b)):
            return "READY"
        return "PENDING" if None in self.buffer(b) else "STUCK"

    def can_reserve(self, version: int) -> bool:
        return any(self.status(b) == "PENDING" for b in self.window_ids(version))

    def reserve(self, group: int, version: int) -> None:
        b = max(b for b in self.window_ids(version) if self.status(b) == "PENDING")
        entry = max(e for e, found in enumerate(self.buffer(b)) if found is None)
        self.version[group] = version
        self._put(b, entry, RESERVED, group)

    def occupy(self, group: int) -> None:
        self._leave_by_movement(group)
        b = min(b for b in self.window_ids(self.version[group]) if self.status(b) == "PENDING")
        entry = min(e for e, found in enumerate(self.buffer(b)) if found is None)
        self._put(b, entry, OCCUPIED, group)

    def abort(self, group: int) -> None:
        """Nothing moves across buffers."""
        b, entry = self.place.pop(group)
        del self.version[group]
        self.buffer(b)[entry] = None
        self._compact(b)

    def consume(self) -> list[int]:
        assert self.status(self.train_version) == "READY"
        groups = [entry[1] for entry in self.buffers.pop(self.train_version) if entry]
        for group in groups:
            del self.place[group], self.version[group]
        self.train_version += 1
        return groups

    def check(self) -> None:
        """Every group has one slot, inside its window; occupied entries below, reserved ones above."""
        for group, (b, entry) in self.place.items():
            assert b in self.window_ids(self.version[group])
            found = self.buffer(b)[entry]
            assert found is not None
            assert found[1] == group
        assert sum(e is not None for entries in self.buffers.values() for e in entries) == len(self.place)
        for entries in self.buffers.values():
            order = [{OCCUPIED: 0, RESERVED: 2}[entry[0]] if entry else 1 for entry in entries]
            assert order == sorted(order)

    def _leave_by_movement(self, group: int) -> None:
        b0, e0 = self.place.pop(group)
        self.buffer(b0)[e0] = None
        for b in self.window_ids(self.version[group]):
            if b > b0 or self.status(b) == "READY":
                continue
            for e, found in enumerate(self.buffer(b)):
                if b == b0 and e >= e0:
                    break
                fits = found is not None and found[0] == RESERVED
                if fits and b0 - self.max_staleness <= self.version[found[1]] <= b0:
                    self.buffer(b)[e] = None
                    self._put(b0, e0, RESERVED, found[1])
                    self._compact(b)
                    return
        self._compact(b0)

    def _compact(self, b: int) -> None:
        """Reserved entries stand at the top without a hole: the lowest moves into it."""
        entries = self.buffer(b)
        occupied = [entry for entry in entries if entry is not None and entry[0] == OCCUPIED]
        reserved = [e for e, entry in enumerate(entries) if entry is not None and entry[0] == RESERVED]
        holes = [
            e for e, entry in enumerate(entries) if entry is None and e > min(reserved, default=self.size)
        ]
        assert entries[: len(occupied)] == occupied
        for hole in holes:
            moved = entries[reserved[0]]
            assert moved is not None
            entries[reserved[0]] = None
            self._put(b, hole, *moved)

    def _put(self, b: int, entry: int, category: str, group: int) -> None:
        assert self.buffer(b)[entry] is None
        self.buffer(b)[entry] = (category, group)
        self.place[group] = (b, entry)

    def row(self, b: int) -> str:
        return " ".join(f"{entry[0]}{entry[1]}" if entry else "." for entry in self.buffer(b))


def test_the_oracle_replays_the_worked_example_row_by_row():
    """As the released controller of StaleFlow executes it: eta 1, buffers of 3."""
    paper, ledger = PaperSlots(1, 3), Ledger(max_staleness=1, batch_groups=3)

    def reserve(version, *groups):
        for group in groups:
            assert ledger.can_reserve(version)
            paper.reserve(group, version)
            ledger.reserve(group, version)

    def occupy(*groups):
        for group in groups:
            paper.occupy(group)
            ledger.occupy(group)

    def stands(**rows):
        for name, row in rows.items():
            b = int(name.removeprefix("b"))
            *entries, status = (
                row.split() if row.split()[-1].isupper() and len(row.split()) > 3 else [*row.split(), ""]
            )
            assert paper.row(b) == " ".join(entries)
            assert not status or paper.status(b) == status
        paper.check()
        ledger.check()
        assert (ledger.ready_batch() is not None) == (paper.status(ledger.train_version) == "READY")

    reserve(0, 1, 2, 3)
    stands(b0=". . .", b1="r3 r2 r1 STUCK")
    reserve(0, 4)
    stands(b0=". . r4", b1="r3 r2 r1")
    occupy(2)
    stands(b0="O2 . .", b1="r3 r4 r1")
    occupy(1)
    stands(b0="O2 O1 .", b1=". r4 r3 PENDING")
    reserve(0, 5, 6)
    stands(b0="O2 O1 r6 STUCK", b1="r5 r4 r3 STUCK")
    assert not paper.can_reserve(0)
    assert not ledger.can_reserve(0)
    occupy(5)
    stands(b0="O2 O1 O5 READY", b1="r6 r4 r3 STUCK")
    assert sorted(paper.consume()) == ledger.ready_batch() == [1, 2, 5]
    ledger.consume([1, 2, 5])
    stands(b1="r6 r4 r3")
    reserve(1, 7, 8)
    stands(b1="r6 r4 r3 STUCK", b2=". r8 r7")
    occupy(3, 7)
    stands(b1="O3 r4 r6 STUCK", b2="O7 . r8")
    occupy(4, 6)
    stands(b1="O3 O4 O6 READY", b2="O7 . r8")


class Lockstep:
    """Both protocols under the same operations: what the paper allows happens, in both."""

    def __init__(self, max_staleness: int, size: int) -> None:
        self.paper = PaperSlots(max_staleness, size)
        self.ledger = Ledger(max_staleness=max_staleness, batch_groups=size)
        self.groups = 0
        self.consumed = 0
        self.more_admitted = 0  # the ledger would admit, the paper does not
        self.earlier = 0  # the ledger has a batch, the paper waits

    def reserve(self, version: int, *, is_equal: bool) -> None:
        paper, ledger = self.paper.can_reserve(version), self.ledger.can_reserve(version)
        assert ledger >= paper
        if is_equal:
            assert ledger == paper
        self.more_admitted += ledger > paper
        if paper:
            self.paper.reserve(self.groups, version)
            self.ledger.reserve(self.groups, version)
            self.groups += 1

    def reserved(self) -> list[int]:
        rows = self.paper.buffers.values()
        return sorted(entry[1] for row in rows for entry in row if entry and entry[0] == RESERVED)

    def occupy(self, group: int) -> None:
        self.paper.occupy(group)
        self.ledger.occupy(group)

    def abort(self, group: int) -> None:
        self.paper.abort(group)
        self.ledger.release(group)

    def consume(self) -> None:
        is_ready = self.paper.status(self.paper.train_version) == "READY"
        batch = self.ledger.ready_batch()
        self.earlier += batch is not None and not is_ready
        if is_ready:
            assert batch is not None
            self.paper.consume()
            self.ledger.consume(batch)
            self.consumed += 1

    def check(self) -> None:
        self.paper.check()
        self.ledger.check()


def drive(seed: int, *, is_monotone: bool, with_aborts: bool, steps: int = 400) -> Lockstep:
    """Random operations. `is_monotone`: no group starts under an older version than one before it."""
    rng = random.Random(seed)
    both = Lockstep(rng.randrange(5), rng.randint(1, 4))
    version = 0
    for _ in range(steps):
        operation = rng.choice(["reserve"] * 4 + ["occupy"] * 3 + ["consume"] * 2 + ["abort"] * with_aborts)
        oldest = max(0, both.paper.train_version - both.paper.max_staleness)
        newest = both.paper.train_version
        reserved = both.reserved()
        if operation == "reserve":
            version = rng.randint(max(oldest, version if is_monotone else 0), newest)
            both.reserve(version, is_equal=is_monotone)
        elif operation == "consume":
            both.consume()
        elif reserved:
            (both.occupy if operation == "occupy" else both.abort)(rng.choice(reserved))
        both.check()
    return both


@pytest.mark.parametrize("with_aborts", [False, True], ids=["no aborts", "aborts"])
def test_with_versions_that_never_go_back_both_admit_the_same(with_aborts):
    runs = [drive(seed, is_monotone=True, with_aborts=with_aborts) for seed in range(80)]
    assert sum(run.consumed for run in runs) > 700


@pytest.mark.parametrize("with_aborts", [False, True], ids=["no aborts", "aborts"])
def test_with_any_versions_the_ledger_admits_whatever_the_paper_does_and_is_never_ready_later(with_aborts):
    runs = [drive(seed, is_monotone=False, with_aborts=with_aborts) for seed in range(80)]
    assert sum(run.consumed for run in runs) > 400
    assert not with_aborts or sum(run.earlier for run in runs) > 0
    assert sum(run.more_admitted for run in runs) > 0


def test_one_move_of_one_reservation_can_leave_the_paper_stuck_and_not_the_ledger():
    """g2 could go one buffer later when g1 has, but only one reservation moves."""
    both = Lockstep(3, 1)
    for group in (0, 1):  # two steps, so that version 2 is the newest
        both.reserve(0, is_equal=True)
        both.occupy(group)
        both.consume()
    for version in (2, 2, 1, 0):
        both.reserve(version, is_equal=False)
    g, g1, g2, first = 2, 3, 4, 5
    both.occupy(first)
    both.consume()
    assert [both.paper.row(b) for b in (3, 4, 5)] == [f"r{g2}", f"r{g1}", f"r{g}"]
    both.occupy(g)
    assert [both.paper.row(b) for b in (3, 4, 5)] == [f"r{g2}", f"O{g}", f"r{g1}"]
    assert both.paper.status(3) == "STUCK"
    assert both.ledger.ready_batch() == [g]


def test_an_aborted_neighbour_leaves_the_paper_stuck_and_not_the_ledger():
    """Abort moves no reservation across buffers: an early slot stays with a group that has time to spare."""
    both = Lockstep(1, 1)
    for version in (0, 0):
        both.reserve(version, is_equal=True)
    both.occupy(0)
    both.consume()
    both.occupy(1)
    both.consume()
    both.reserve(2, is_equal=True)
    both.reserve(2, is_equal=True)
    both.abort(2)
    assert (both.paper.row(2), both.paper.row(3)) == ("r3", ".")
    assert not both.paper.can_reserve(1)
    assert both.ledger.can_reserve(1)


def test_an_older_start_can_take_back_a_batch_that_nobody_has_taken():
    """The one point where the ledger is laxer than the paper, whose READY is final."""
    both = Lockstep(1, 1)
    both.reserve(0, is_equal=True)
    both.occupy(0)
    both.consume()
    both.reserve(1, is_equal=True)
    both.occupy(1)
    assert both.paper.status(1) == "READY"
    assert both.ledger.ready_batch() == [1]
    assert not both.paper.can_reserve(0)
    assert both.ledger.can_reserve(0)
    both.ledger.reserve(2, 0)
    assert both.ledger.ready_batch() is None
    both.ledger.occupy(2)
    assert both.ledger.ready_batch() == [2]
