"""A brute-force oracle of the ledger: explicit slots, an explicit matching, random operations against both.

Invariants: the oracle knows nothing of the ledger's counting: a group may stand in any slot of a batch up to
its deadline, and what is possible is decided by augmenting paths; every group that is trained is checked
against the version it started under.
"""

import random
from dataclasses import dataclass, field

from controller.core.state.ledger import Ledger

BATCHES = (1, 2, 3, 5)  # groups of a batch
OPERATIONS = ("reserve",) * 5 + ("occupy",) * 4 + ("consume",) * 2 + ("abort", "lower")


class Slots:
    """Batches of `size` slots from batch `first` on, and who stands where."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size = first, size
        self.batches: dict[int, list[int]] = {}
        self.place: dict[int, int] = {}  # group -> its batch
        self.window: dict[int, tuple[int, int]] = {}  # group -> first and last batch it may be in

    def add(self, group: int, last: int, *, first: int | None = None) -> bool:
        """Whether the group gets a slot, others moving as they must."""
        self.window[group] = (self.first if first is None else first, last)
        if self._put(group, set()):
            return True
        del self.window[group]
        return False

    def remove(self, group: int) -> None:
        """Its slot is empty again."""
        self.batches[self.place.pop(group)].remove(group)
        del self.window[group]

    def has_room(self, last: int) -> bool:
        """Whether one more group with this deadline would get a slot."""
        is_possible = last >= self.first and self.add(-1, last)
        if is_possible:
            self.remove(-1)
        return is_possible

    def _put(self, group: int, seen: set[int]) -> bool:
        first, last = self.window[group]
        for batch in range(first, last + 1):
            if batch in seen:
                continue
            seen.add(batch)
            there = self.batches.setdefault(batch, [])
            if len(there) < self.size:
                there.append(group)
                self.place[group] = batch
                return True
            for other in list(there):
                if self._put(other, seen):
                    there.remove(other)
                    there.append(group)
                    self.place[group] = batch
                    return True
        return False


def matching(windows: dict[int, tuple[int, int]], size: int) -> Slots | None:
    """Slots that hold every group within its window, or None if there are none."""
    slots = Slots(0, size)
    is_whole = all(slots.add(group, last, first=first) for group, (first, last) in windows.items())
    return slots if is_whole else None


@dataclass
class Against:
    """The ledger and the oracle under the same operations; any difference is an AssertionError."""

    bound: int
    size: int
    spare: int
    seed: int
    trained: int = 0
    refused: int = 0
    dropped: int = 0
    versions: dict[int, int] = field(default_factory=dict)  # oldest of each group in the ledger
    occupied: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.ledger = Ledger(max_staleness=self.bound, batch_groups=self.size, spare_groups=self.spare)
        self.slots = Slots(0, self.size + self.spare)
        self.groups = 0

    def due(self, group: int) -> int:
        """Last batch that may train the group, from its version alone."""
        return self.versions[group] + self.bound

    def run(self, operations: int) -> "Against":
        """Make so many random operations."""
        for _ in range(operations):
            getattr(self, self.rng.choice(OPERATIONS))()
        self.ledger.check()
        return self

    def reserve(self) -> None:
        version = max(0, self.ledger.train_version - self.rng.randrange(self.bound + 2))
        is_admitted, is_possible = self.ledger.can_reserve(version), self.slots.has_room(version + self.bound)
        # with spare groups a batch may leave more behind than fits, then the ledger refuses rather more
        assert is_admitted == is_possible or (self.spare and not is_admitted), (version, self)
        self.refused += not is_admitted
        if is_admitted:
            self.groups += 1
            self.ledger.reserve(self.groups, version)
            self.versions[self.groups] = version
            self.reserved.append(self.groups)
            assert self.slots.add(self.groups, version + self.bound)

    def lower(self) -> None:
        if not self.reserved:
            return
        group = self.rng.choice(self.reserved)
        version = max(0, self.versions[group] - self.rng.randrange(3))
        is_allowed = self.ledger.can_lower(group, version)
        if group in self.slots.place:
            self.slots.remove(group)
        is_possible = version + self.bound >= self.slots.first and self.slots.add(group, version + self.bound)
        assert is_allowed == is_possible or self.spare, (group, version, self)
        if is_allowed:
            self.ledger.lower(group, version)
            self.versions[group] = version
        if is_allowed != is_possible or not is_allowed:
            self._match_again()

    def occupy(self) -> None:
        if self.reserved:
            group = self._take(self.reserved)
            self.ledger.occupy(group)
            self.occupied.append(group)
            self._drop_useless()

    def abort(self) -> None:
        if self.versions:
            self._leave(self.rng.choice(list(self.versions)))

    def consume(self) -> None:
        now = self.ledger.train_version
        batch = self.ledger.ready_batch()
        assert (batch is not None) == self._is_trainable(now), self
        if batch is None:
            return
        assert len(set(batch)) == self.size
        for group in batch:
            self.occupied.remove(group)  # ValueError: it was trained before it was complete, or twice
            assert now - self.versions.pop(group) <= self.bound, f"{group} is too old: {self}"
        self.trained += len(batch)
        self.ledger.consume(batch)
        self._match_again()
        self._drop_useless()

    def _is_trainable(self, now: int) -> bool:
        if self.spare or len(self.occupied) < self.size:
            return len(self.occupied) >= self.size
        first = {**dict.fromkeys(self.reserved, now + 1), **dict.fromkeys(self.occupied, now)}
        return matching({group: (at, self.due(group)) for group, at in first.items()}, self.size) is not None

    def _drop_useless(self) -> None:
        """What the ledger names is past its deadline, or all batches it could join are full without it."""
        named = self.ledger.useless()
        now = self.ledger.train_version
        if self.spare:
            full = Slots(now, self.size)
            for group in self.occupied:
                if self.due(group) >= now:
                    full.add(group, self.due(group))
            filled = now - 1 + len(full.place) // self.size
            past = {group for group in self.versions if self.due(group) < now}
            idle = {group for group in self.reserved if self.due(group) <= filled}
            assert set(named) == past | idle, (named, self)
        for group in named:
            self._leave(group)
            self.dropped += 1

    def _leave(self, group: int) -> None:
        self.ledger.release(group)
        del self.versions[group]
        (self.occupied if group in self.occupied else self.reserved).remove(group)
        if group in self.slots.place:
            self.slots.remove(group)
        if len(self.slots.place) < len(self.versions):
            self._match_again()

    def _match_again(self) -> None:
        self.slots = Slots(self.ledger.train_version, self.size + self.spare)
        found = [self.slots.add(group, self.due(group)) for group in self.versions]
        assert all(found) or self.spare, f"no slots for all: {self}"

    def _take(self, groups: list[int]) -> int:
        place = self.rng.randrange(len(groups))
        groups[place], groups[-1] = groups[-1], groups[place]
        return groups.pop()


def against_slots(operations: int, *, seed: int = 0) -> dict[str, int]:
    """Random operations over bounds 0 to 4, several batch sizes, redundancy on and off: totals.

    Raises: AssertionError at the first operation in which the ledger and the oracle differ.
    """
    cases = [(bound, size, spare) for bound in range(5) for size in BATCHES for spare in (0, 2)]
    totals = {"operations": 0, "trained": 0, "refused": 0, "dropped": 0}
    for i, (bound, size, spare) in enumerate(cases):
        count = operations // len(cases)
        done = Against(bound, size, spare, seed * len(cases) + i).run(count)
        totals["operations"] += count
        for name in ("trained", "refused", "dropped"):
            totals[name] += getattr(done, name)
    return totals
