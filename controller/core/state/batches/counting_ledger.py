"""Ledgers of systems that promise no strict bound, with the interface of the strict one, for comparison.

Invariants: a batch is `batch_groups` occupied groups, consumed in order of train_version; there is no
reservation, so any number may start (only admission limits it); `floor` keeps the bound by dropping groups
that grew too old, `arrival` and `completion` do not keep it.
Source: AReaL (`arrival`, arXiv 2505.24298), veRL's fully asynchronous trainer (`completion`), ROLL Flash
(`floor`), as DryRun-RL, the simulator of StaleFlow's authors, has them.
"""

from typing import Literal

from controller.core.state.ledger import LedgerBase, buffer_state
from controller.core.state.views.snapshot import BufferSnapshot

Order = Literal["arrival", "completion", "floor"]
UNLIMITED = 1 << 30


class CountingLedger(LedgerBase):
    """Groups in the system, by the version that they started under. Units: groups, policy versions."""

    def __init__(self, order: Order, *, max_staleness: int, batch_groups: int, spare_groups: int = 0) -> None:
        super().__init__()
        self.order: Order = order
        self.is_strict = order == "floor"
        self.max_staleness = max_staleness
        self.batch_groups = batch_groups
        self.spare_groups = spare_groups
        self.train_version = 0
        self._places: dict[int, int] = {}  # group -> order of its start
        self._started = 0

    def begin_at(self, train_version: int) -> None:
        """The next batch is for this version."""
        self.train_version = train_version

    def deadline(self, group: int) -> int:
        """When the group would be due under the bound; it orders queues, and promises nothing."""
        version = self._reserved[group] if group in self._reserved else self._occupied[group]
        return version + self.max_staleness

    def can_reserve(self, policy_version: int) -> bool:
        """Whether a group of this version would not be too old at its start."""
        return self.headroom(policy_version) > 0

    def headroom(self, policy_version: int) -> int:
        """Unlimited, unless the group would be dropped at once."""
        is_too_old = self.order == "floor" and policy_version < self.train_version - self.max_staleness
        return 0 if is_too_old else UNLIMITED

    def reserve(self, group: int, policy_version: int, *, source: int = 0) -> None:
        """Enter a group that starts now."""
        self._enter(group, policy_version, source)
        self._places[group] = self._started
        self._started += 1

    def can_lower(self, group: int, policy_version: int) -> bool:
        """As `can_reserve`."""
        return self.can_reserve(policy_version)

    def reach(self, policy_version: int) -> int:
        """As `can_lower`, for all groups alike."""
        return UNLIMITED if self.can_reserve(policy_version) else -1

    def lower(self, group: int, policy_version: int) -> None:
        """A sibling starts under an older version: the group is as old as its oldest member."""
        self._reserved[group] = min(self._reserved[group], policy_version)

    def occupy(self, group: int) -> None:
        """The group is complete and scored. Raises: KeyError if it is not reserved."""
        self._occupied[group] = self._reserved.pop(group)

    def release(self, group: int) -> None:
        """The group is removed, or starts again later. Raises: KeyError if it is not here."""
        (self._reserved if group in self._reserved else self._occupied).pop(group)
        del self._places[group]
        self._leave(group)

    def is_ready(self) -> bool:
        """Whether there are enough groups for a batch; stragglers are not waited for."""
        return len(self._occupied) >= self.batch_groups

    def is_ready_without(self, given_up: set[int]) -> bool:
        """As `is_ready`: reserved groups hold nothing back."""
        return self.is_ready()

    def ready_batch(self) -> list[int] | None:
        """The groups to train now, chosen by `order`; None if there are too few."""
        if not self.is_ready():
            return None
        if self.order == "completion":
            return list(self._occupied)[: self.batch_groups]
        by_start = self._floor_and_place if self.order == "floor" else self._place
        return sorted(self._occupied, key=by_start)[: self.batch_groups]

    def consume(self, groups: list[int]) -> None:
        """The batch goes to the trainer."""
        for group in groups:
            del self._occupied[group]
            del self._places[group]
            self._leave(group)
        self.train_version += 1

    def useless(self) -> list[int]:
        """Groups that are too old for the next batch; only `floor` has any."""
        if self.order != "floor":
            return []
        oldest = self.train_version - self.max_staleness
        return [g for g, version in {**self._reserved, **self._occupied}.items() if version < oldest]

    def due_counts(self) -> dict[int, int]:
        """Unconsumed groups by the deadline that they would have."""
        counts: dict[int, int] = {}
        for version in (*self._reserved.values(), *self._occupied.values()):
            counts[version + self.max_staleness] = counts.get(version + self.max_staleness, 0) + 1
        return dict(sorted(counts.items()))

    def buffers(self) -> tuple[BufferSnapshot, ...]:
        """The next batch alone: nothing is bound to a later one."""
        state = buffer_state(self.is_ready(), free=-1)
        taken = min(self.batch_groups, self.occupied)
        return (BufferSnapshot(self.train_version, state, taken, self.reserved, -1),)

    def blockers(self) -> list[int]:
        """None: stragglers are not waited for."""
        return []

    def check(self) -> None:
        """A group is here at most once, and has a place."""
        super().check()
        assert self._places.keys() == self._reserved.keys() | self._occupied.keys()

    def _place(self, group: int) -> tuple[int, ...]:
        return (self._places[group],)

    def _floor_and_place(self, group: int) -> tuple[int, ...]:
        return self._occupied[group], self._places[group]
