"""The staleness ledger: which group may start, and which batch may be trained, without breaking a bound.

A reservation is a *deadline*, not a slot: a group that starts under version v must be consumed by the batch
of `v + max_staleness` at the latest. Invariants:
- L1 Window: every unconsumed group's deadline lies in [train_version, train_version + max_staleness].
- L2 Hall: without redundancy, for every u >= train_version, at most `batch_groups * (u - train_version + 1)`
  unconsumed groups are due by u. So a slot assignment exists at all times, whatever the order of completion.
- L3 A group is in the ledger at most once, reserved or occupied.
- L4 Batches are consumed in order of train_version, always of exactly `batch_groups` groups.
With batch redundancy (`spare_groups` > 0) admission counts `batch_groups + spare_groups` per batch, a batch
waits for no straggler, and what can no longer be used is named by `useless`, to be aborted.

docs/ledger.md proves that this equals the paper's slots. Source: StaleFlow (arXiv 2601.12784), reserve /
occupy / consume; restated by deadlines.
"""

from collections import Counter

from controller.core.state.views.snapshot import BufferSnapshot


def buffer_state(is_ready: bool, free: int) -> str:
    """The state of a buffer, in the words of the StaleFlow paper.

    It says whether the buffer can be consumed, and whether groups may start in it. STUCK: neither, as it
    waits for running groups.
    """
    if is_ready:
        return "READY_WITH_CAPACITY" if free else "READY"
    return "PENDING" if free else "STUCK"


class LedgerBase:
    """Reserved and occupied groups, which every ledger counts."""

    def __init__(self) -> None:
        self._reserved: dict[int, int] = {}  # group -> its deadline or version, in the order of starts
        self._occupied: dict[int, int] = {}  # in the order of completion
        self._sources: dict[int, int] = {}  # group -> the source of its prompt
        self.by_source: dict[int, int] = {}  # source of prompts -> its groups in the ledger

    def __len__(self) -> int:
        return len(self._reserved) + len(self._occupied)

    def __contains__(self, group: int) -> bool:
        return group in self._reserved or group in self._occupied

    @property
    def reserved(self) -> int:
        """Groups that have started and are not yet scored."""
        return len(self._reserved)

    @property
    def occupied(self) -> int:
        """Groups that are scored and wait for their batch."""
        return len(self._occupied)

    def check(self) -> None:
        """Assert that a group is here at most once, and counted for its source."""
        assert not self._reserved.keys() & self._occupied.keys()
        assert self._sources.keys() == self._reserved.keys() | self._occupied.keys()
        counts = Counter(self._sources.values())
        assert +Counter(self.by_source) == counts, (
            f"counts of sources have drifted: {self.by_source} {counts}"
        )

    def _enter(self, group: int, bound_to: int, source: int) -> None:
        assert group not in self._reserved, f"group {group} is reserved already"
        assert group not in self._occupied, f"group {group} is occupied already"
        self._reserved[group] = bound_to
        self._sources[group] = source
        self.by_source[source] = self.by_source.get(source, 0) + 1

    def _leave(self, *groups: int) -> None:
        for source, count in Counter(map(self._sources.pop, groups)).items():
            self.by_source[source] -= count


class Ledger(LedgerBase):
    """Reservations of groups against future batches, bound to deadlines. Units: groups, policy versions."""

    is_strict = True
    """Whether every batch keeps the bound by construction."""

    def __init__(
        self, *, max_staleness: int, batch_groups: int, train_version: int = 0, spare_groups: int = 0
    ) -> None:
        super().__init__()
        self.max_staleness = max_staleness
        self.batch_groups = batch_groups
        self.spare_groups = spare_groups
        self.train_version = train_version
        self._due: dict[int, int] = {}  # deadline -> unconsumed groups
        self._due_occupied: dict[int, int] = {}  # deadline -> those of them that are occupied
        self._slacks = self._counted_slacks()  # updated by every change, never by a look

    def begin_at(self, train_version: int) -> None:
        """The next batch is for this version. Call it only while no group is in the ledger."""
        self.train_version = train_version
        self._slacks = self._counted_slacks()

    def deadline(self, group: int) -> int:
        """The last train_version that may consume the group. Raises: KeyError if it is not in the ledger."""
        return self._reserved[group] if group in self._reserved else self._occupied[group]

    def can_reserve(self, policy_version: int) -> bool:
        """Whether one more group may start under this version."""
        return self.headroom(policy_version) > 0

    def headroom(self, policy_version: int) -> int:
        """How many groups may start under this version, one after another."""
        deadline = policy_version + self.max_staleness
        if deadline < self.train_version:
            return 0
        return max(0, min(slack for due, slack in self._slacks if due >= deadline))

    def reserve(self, group: int, policy_version: int, *, source: int = 0) -> None:
        """Bind a group that starts now to its deadline. Call `can_reserve` first."""
        assert self.can_reserve(policy_version), f"no headroom for version {policy_version}"
        self._enter(group, policy_version + self.max_staleness, source)
        self._count(self._due, self._reserved[group], 1)
        self._slacks = self._counted_slacks()

    def can_lower(self, group: int, policy_version: int) -> bool:
        """Whether a sibling may start under this older version, which pulls the group's deadline forward."""
        return self._reserved[group] <= self.reach(policy_version)

    def reach(self, policy_version: int) -> int:
        """The latest deadline of a group that may include a member started under this version.

        A group that is due later would take a place that is promised to others.
        """
        deadline = policy_version + self.max_staleness
        if deadline < self.train_version:
            return deadline
        for due, slack in self._slacks:
            if slack < 1 and due >= deadline:
                return due
        return self.train_version + self.max_staleness

    def lower(self, group: int, policy_version: int) -> None:
        """A sibling starts under this version: the group's deadline is that of its oldest member."""
        assert self.can_lower(group, policy_version), f"group {group} cannot include version {policy_version}"
        deadline = policy_version + self.max_staleness
        if deadline < self._reserved[group]:
            self._count(self._due, self._reserved[group], -1)
            self._count(self._due, deadline, 1)
            self._slacks = self._counted_slacks()
            self._reserved[group] = deadline

    def occupy(self, group: int) -> None:
        """The group is complete and scored: it may be consumed. Raises: KeyError if it is not reserved."""
        self._occupied[group] = self._reserved.pop(group)
        self._count(self._due_occupied, self._occupied[group], 1)

    def release(self, group: int) -> None:
        """Free the place of a group that is removed, or starts again later.

        Raises: KeyError if it is not in the ledger.
        """
        if group in self._occupied:
            self._count(self._due_occupied, self._occupied[group], -1)
            self._count(self._due, self._occupied.pop(group), -1)
        else:
            self._count(self._due, self._reserved.pop(group), -1)
        self._slacks = self._counted_slacks()
        self._leave(group)

    def ready_batch(self) -> list[int] | None:
        """The groups to train now, oldest deadline first; None if they are too few, or would break a promise.

        Taking the earliest deadlines leaves the most room for the rest, so if this choice fails every other
        does.
        """
        return self._earliest() if self.is_ready() else None

    def is_ready(self) -> bool:
        """Whether `ready_batch` has a batch; costs one look at the window."""
        return len(self._occupied) >= self.batch_groups and (
            bool(self.spare_groups) or self.is_ready_without(set())
        )

    def is_ready_without(self, given_up: set[int]) -> bool:
        """Whether there would be a batch if these reserved groups were not there: what a straggler costs."""
        if len(self._occupied) < self.batch_groups:
            return False
        to_take, left = self.batch_groups, 0
        for due in self._window():
            taken = min(to_take, self._due_occupied.get(due, 0))
            to_take -= taken
            gone = sum(self._reserved.get(group) == due for group in given_up)
            left += self._due.get(due, 0) - taken - gone
            if left > self.batch_groups * (due - self.train_version):
                return False
        return True

    def consume(self, groups: list[int]) -> None:
        """The batch goes to the trainer; the next one is for train_version + 1."""
        assert len(groups) == self.batch_groups, (
            f"{len(groups)} groups are not a batch of {self.batch_groups}"
        )
        for due, count in Counter(map(self._occupied.pop, groups)).items():
            self._count(self._due, due, -count)
            self._count(self._due_occupied, due, -count)
        self._leave(*groups)
        self.train_version += 1
        self._slacks = self._counted_slacks()

    def useless(self) -> list[int]:
        """Groups that no batch can use any more; empty without redundancy.

        These are those past their deadline and, once occupied groups fill every batch up to a deadline, all
        that are still generated for it.

        Source: StaleFlow (arXiv 2601.12784), abort by version.
        """
        if not self.spare_groups:
            return []
        past = [g for g, due in {**self._reserved, **self._occupied}.items() if due < self.train_version]
        full_until = self.train_version - 1
        filled = 0
        for due in self._window():
            filled = min(
                filled + self._due_occupied.get(due, 0), self.batch_groups * (due - self.train_version + 1)
            )
        later = sum(
            count
            for due, count in self._due_occupied.items()
            if due > self.train_version + self.max_staleness
        )
        assert not later, "a deadline lies beyond the window"
        full_until += filled // self.batch_groups
        idle = [g for g, due in self._reserved.items() if self.train_version <= due <= full_until]
        return sorted({*past, *idle})

    def settle(self) -> list[int]:
        """Fix occupied groups that will certainly be in the next batch, earliest deadline first.

        A trainer may begin on them. They are due now from here on, so that no later start displaces them.

        Only groups that the earliest deadlines would give the batch anyway are fixed; among equal deadlines,
        those completed first. So L2 holds afterwards: of a group and those before it, no more than
        `batch_groups` are due by any date before its own. Only without redundancy.
        """
        assert not self.spare_groups, "with redundancy no group is certain before its batch"
        settled: list[int] = []
        before = 0
        for due in self._window():
            there = [group for group, deadline in self._occupied.items() if deadline == due]
            settled += there[: max(0, self.batch_groups - before)]
            before += self._due.get(due, 0)
        for group in settled:
            for counts in (self._due, self._due_occupied):
                self._count(counts, self._occupied[group], -1)
                self._count(counts, self.train_version, 1)
            self._occupied[group] = self.train_version
        self._slacks = self._counted_slacks()
        return settled

    def due_counts(self) -> dict[int, int]:
        """Unconsumed groups by deadline, over the whole window: the virtual staleness buffers, for people."""
        return {due: self._due.get(due, 0) for due in self._window()}

    def buffers(self) -> tuple[BufferSnapshot, ...]:
        """The batches of the window with their states, for people.

        Scored groups count for the earliest batches, earliest deadlines first, as they will be taken; a batch
        is ready if it could be taken after those before it with no promise broken.
        """
        found: list[BufferSnapshot] = []
        occupied = dict(self._due_occupied)
        for version in self._window():
            taken = 0
            for due in self._window():
                count = min(self.batch_groups - taken, occupied.get(due, 0))
                occupied[due], taken = occupied.get(due, 0) - count, taken + count
            reserved = self._due.get(version, 0) - self._due_occupied.get(version, 0)
            is_ready = taken == self.batch_groups and (
                bool(self.spare_groups) or self._keeps(version, occupied)
            )
            free = self.headroom(version - self.max_staleness)
            found.append(BufferSnapshot(version, buffer_state(is_ready, free), taken, reserved, free))
        return tuple(found)

    def _keeps(self, version: int, occupied: dict[int, int]) -> bool:
        """Whether the groups left after this batch and those before it fit into the later batches."""
        left = 0
        for due in self._window():
            left += self._due.get(due, 0) - self._due_occupied.get(due, 0) + occupied.get(due, 0)
            if left > self.batch_groups * max(0, due - version):
                return False
        return True

    def blockers(self) -> list[int]:
        """Reserved groups that the next batch has to wait for, as their deadline is now."""
        if not self._due.get(self.train_version, 0):
            return []
        return [group for group, due in self._reserved.items() if due == self.train_version]

    def check(self) -> None:
        """L1 to L3 as assertions."""
        super().check()
        counts: dict[int, int] = {}
        for due in (*self._reserved.values(), *self._occupied.values()):
            assert due <= self.train_version + self.max_staleness, f"deadline {due} is out of window"
            assert due >= self.train_version or self.spare_groups, f"deadline {due} is past"
            counts[due] = counts.get(due, 0) + 1
        assert counts == self._due, f"deadline counts have drifted: {counts} {self._due}"
        assert self._slacks == self._counted_slacks(), f"slacks have drifted: {self._slacks}"
        assert all(slack >= 0 for _, slack in self._slacks) or self.spare_groups, (
            f"Hall's condition is broken: {self.due_counts()}"
        )

    def _earliest(self) -> list[int]:
        in_order = sorted(self._occupied)  # of equal deadlines
        return sorted(in_order, key=self._occupied.__getitem__)[: self.batch_groups]

    def _window(self) -> range:
        return range(self.train_version, self.train_version + self.max_staleness + 1)

    def _counted_slacks(self) -> list[tuple[int, int]]:
        """For each deadline of the window, how many more groups could be due by then."""
        found: list[tuple[int, int]] = []
        total, places = 0, self.batch_groups + self.spare_groups
        for due in self._window():
            total += self._due.get(due, 0)
            found.append((due, places * (due - self.train_version + 1) - total))
        return found

    def _count(self, counts: dict[int, int], due: int, change: int) -> None:
        counts[due] = counts.get(due, 0) + change
        if not counts[due]:
            del counts[due]
