"""Ledger of systems that fix the batch of each group when it starts, and wait for exactly these groups.

Invariants: groups are consumed in the order of their starts, whichever ends first; a group starts under a
version only if the batch of its place in that order keeps the bound, so every batch does.
Source: NeMo-RL's asynchronous GRPO (`in_order`), in which each trajectory is generated for a target version.
"""

from itertools import islice

from controller.core.state.batches.counting_ledger import CountingLedger


class InOrderLedger(CountingLedger):
    """Groups in the order of their starts. Units: groups, policy versions."""

    def __init__(self, *, max_staleness: int, batch_groups: int) -> None:
        super().__init__("arrival", max_staleness=max_staleness, batch_groups=batch_groups)
        self.is_strict = True

    def headroom(self, policy_version: int) -> int:
        """Places left in the batches that a group of this version may be in."""
        batches = policy_version + self.max_staleness + 1 - self.train_version
        return max(0, batches * self.batch_groups - len(self))

    def can_lower(self, group: int, policy_version: int) -> bool:
        """Never below the version that the group was reserved under."""
        return policy_version >= self._reserved[group]

    def reach(self, policy_version: int) -> int:
        """Groups that started under this version or an older one."""
        return policy_version + self.max_staleness

    def is_ready(self) -> bool:
        """Whether the groups of the next batch are complete."""
        return self.is_ready_without(set())

    def is_ready_without(self, given_up: set[int]) -> bool:
        """Whether they would be complete without the groups `given_up`."""
        if len(self._occupied) < self.batch_groups:
            return False
        left = (group for group in self._places if group not in given_up)
        first = list(islice(left, self.batch_groups))
        return len(first) == self.batch_groups and all(group in self._occupied for group in first)

    def ready_batch(self) -> list[int] | None:
        """The groups that started first; None if one of them is not complete."""
        return list(islice(self._places, self.batch_groups)) if self.is_ready() else None

    def blockers(self) -> list[int]:
        """Groups that the next batch waits for."""
        return [group for group in islice(self._places, self.batch_groups) if group in self._reserved]

    def check(self) -> None:
        """Each group's batch keeps the bound."""
        super().check()
        for place, group in enumerate(self._places):
            batch = self.train_version + place // self.batch_groups
            assert batch <= self.deadline(group), (
                f"group {group} is due by {self.deadline(group)}, not {batch}"
            )
