"""Trajectories that wait for an instance: a multi-level queue by policy version, each level by deadline.

Invariants: only trajectories of started groups are here (their place is reserved); what an instance may run
is decided by the level, the version of the newest token; among those, the earliest deadline comes first,
siblings stand together, older groups come before younger ones. Fresh groups wait elsewhere, behind all of
these.
"""

import heapq

from controller.groups import Trajectory

Entry = tuple[int, int, int, int]  # deadline, group, member, attempt


class DispatchQueue:
    """Heaps with lazy deletion: a trajectory that is no longer queued is skipped when it surfaces."""

    def __init__(self) -> None:
        self._levels: dict[int, list[Entry]] = {}  # newest version -> heap
        self._entries: dict[tuple[int, int], Trajectory] = {}
        self.pushed = 0
        """Trajectories that were ever queued."""

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, trajectory: Trajectory, deadline: int) -> None:
        """Queue a trajectory of a group that is due by `deadline`."""
        assert trajectory.state == "queued"
        self._entries[trajectory.id] = trajectory
        self.pushed += 1
        level = self._levels.setdefault(trajectory.newest_version, [])
        heapq.heappush(level, (deadline, *trajectory.id, trajectory.attempt))

    def peek(self, newest_version: int) -> Trajectory | None:
        """The next to route if the newest instance holds this version, left in place."""
        best: Entry | None = None
        for version in sorted(self._levels):
            if version > newest_version:
                break
            first = self._first(version)
            if first is None:
                del self._levels[version]
            elif best is None or first < best:
                best = first
        return None if best is None else self._entries[best[1], best[2]]

    def remove(self, trajectory: Trajectory) -> None:
        """Take a trajectory out; harmless if it is not queued."""
        self._entries.pop(trajectory.id, None)

    def holds(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory is queued here."""
        return trajectory.id in self._entries

    def count_by_version(self) -> dict[int, int]:
        """How many wait at each level."""
        counts: dict[int, int] = {}
        for trajectory in self._entries.values():
            counts[trajectory.newest_version] = counts.get(trajectory.newest_version, 0) + 1
        return counts

    def _first(self, version: int) -> Entry | None:
        level = self._levels[version]
        while level:
            _, group, member, attempt = level[0]
            trajectory = self._entries.get((group, member))
            if trajectory is not None and (trajectory.attempt, trajectory.newest_version) == (
                attempt,
                version,
            ):
                return level[0]
            heapq.heappop(level)
        return None
