"""The staleness ledger: which group may start, and which batch may be trained, so that no bound is ever
broken.

A reservation is a *deadline*, not a slot: a group that starts under version v must be consumed by the batch
of `v + max_staleness` at the latest. Invariants (STALEFLOW.md B.3, stated for deadlines):
- L1 Window: every unconsumed group's deadline lies in [train_version, train_version + max_staleness].
- L2 Hall: for every u >= train_version, at most `batch_groups * (u - train_version + 1)` unconsumed groups
  are due by u.
- L3 A group is in the ledger at most once, reserved or occupied.
- L4 Batches are consumed in order of train_version, always of exactly `batch_groups` groups. L2 is Hall's
  condition for a perfect matching of groups to slots, so a slot assignment exists at all times whatever the
  order of completion: it replaces slots, and the movement of reservations between them.

Source: StaleFlow (arXiv 2601.12784), reserve / occupy / consume; restated by deadlines.
"""

from collections.abc import Iterator


class Ledger:
    """Reservations of groups against future batches. Units: groups and policy versions."""

    def __init__(self, *, max_staleness: int, batch_groups: int, train_version: int = 0) -> None:
        self.max_staleness = max_staleness
        self.batch_groups = batch_groups
        self.train_version = train_version
        self._reserved: dict[int, int] = {}  # group -> deadline
        self._occupied: dict[int, int] = {}
        self._due: dict[int, int] = {}  # deadline -> unconsumed groups

    def __len__(self) -> int:
        return len(self._reserved) + len(self._occupied)

    @property
    def reserved(self) -> int:
        """Groups that have started and are not yet scored."""
        return len(self._reserved)

    @property
    def occupied(self) -> int:
        """Groups that are scored and wait for their batch."""
        return len(self._occupied)

    def deadline(self, group: int) -> int:
        """The last train_version that may consume the group. Raises: KeyError if it is not in the ledger."""
        return self._reserved[group] if group in self._reserved else self._occupied[group]

    def can_reserve(self, policy_version: int) -> bool:
        """Whether one more group may start under this version."""
        return self._fits(policy_version + self.max_staleness)

    def headroom(self, policy_version: int) -> int:
        """How many groups may start under this version, one after another."""
        deadline = policy_version + self.max_staleness
        if deadline < self.train_version:
            return 0
        return max(0, min(slack for due, slack in self._slacks() if due >= deadline))

    def reserve(self, group: int, policy_version: int) -> None:
        """Bind a group that starts now to its deadline. Call `can_reserve` first."""
        assert group not in {**self._reserved, **self._occupied}, f"group {group} is reserved already"
        assert self.can_reserve(policy_version), f"no headroom for version {policy_version}"
        self._move(group, self._reserved, policy_version + self.max_staleness)

    def can_lower(self, group: int, policy_version: int) -> bool:
        """Whether a sibling may start under this older version, which pulls the group's deadline forward."""
        deadline = policy_version + self.max_staleness
        if deadline >= self._reserved[group]:
            return True
        return deadline >= self.train_version and all(
            slack >= 1 for due, slack in self._slacks() if deadline <= due < self._reserved[group]
        )

    def lower(self, group: int, policy_version: int) -> None:
        """A sibling starts under this version: the group's deadline is that of its oldest member."""
        assert self.can_lower(group, policy_version), f"group {group} cannot include version {policy_version}"
        deadline = policy_version + self.max_staleness
        if deadline < self._reserved[group]:
            self._due[self._reserved[group]] -= 1
            self._move(group, self._reserved, deadline)

    def occupy(self, group: int) -> None:
        """The group is complete and scored: it may be consumed. Raises: KeyError if it is not reserved."""
        self._occupied[group] = self._reserved.pop(group)

    def abort(self, group: int) -> None:
        """The group will never be trained; its place is free at once. Raises: KeyError if it is not in the
        ledger."""
        self._due[(self._reserved if group in self._reserved else self._occupied).pop(group)] -= 1

    def ready_batch(self) -> list[int] | None:
        """The groups to train now, oldest deadline first, or None while that would break a promise or is too
        few.

        Taking the earliest deadlines leaves the most room for the rest, so if this choice fails every other
        does.
        """
        if len(self._occupied) < self.batch_groups:
            return None
        chosen = sorted(self._occupied, key=lambda group: (self._occupied[group], group))[: self.batch_groups]
        taken: dict[int, int] = {}
        for group in chosen:
            taken[self._occupied[group]] = taken.get(self._occupied[group], 0) + 1
        left = 0
        for due in self._window():
            left += self._due.get(due, 0) - taken.get(due, 0)
            if left > self.batch_groups * (due - self.train_version):
                return None
        return chosen

    def consume(self, groups: list[int]) -> None:
        """The batch goes to the trainer; the next one is for train_version + 1."""
        assert len(groups) == self.batch_groups, (
            f"{len(groups)} groups are not a batch of {self.batch_groups}"
        )
        for group in groups:
            self._due[self._occupied.pop(group)] -= 1
        self._due.pop(self.train_version, None)
        self.train_version += 1

    def due_counts(self) -> dict[int, int]:
        """Unconsumed groups by deadline, over the whole window: the virtual staleness buffers, for people."""
        return {due: self._due.get(due, 0) for due in self._window()}

    def blockers(self) -> list[int]:
        """Reserved groups that the next batch has to wait for because their deadline is now."""
        return [group for group, due in self._reserved.items() if due == self.train_version]

    def check(self) -> None:
        """L1 to L3 as assertions."""
        assert not self._reserved.keys() & self._occupied.keys()
        counts: dict[int, int] = {}
        for due in (*self._reserved.values(), *self._occupied.values()):
            assert self.train_version <= due <= self.train_version + self.max_staleness, (
                f"deadline {due} is out of window"
            )
            counts[due] = counts.get(due, 0) + 1
        assert counts == {due: count for due, count in self._due.items() if count}, (
            "deadline counts have drifted"
        )
        assert all(slack >= 0 for _, slack in self._slacks()), (
            f"Hall's condition is broken: {self.due_counts()}"
        )

    def _window(self) -> range:
        return range(self.train_version, self.train_version + self.max_staleness + 1)

    def _slacks(self) -> Iterator[tuple[int, int]]:
        """For each deadline of the window, how many more groups could be due by then."""
        total = 0
        for due in self._window():
            total += self._due.get(due, 0)
            yield due, self.batch_groups * (due - self.train_version + 1) - total

    def _fits(self, deadline: int) -> bool:
        return deadline >= self.train_version and all(
            slack >= 1 for due, slack in self._slacks() if due >= deadline
        )

    def _move(self, group: int, into: dict[int, int], deadline: int) -> None:
        into[group] = deadline
        self._due[deadline] = self._due.get(deadline, 0) + 1
