"""Trajectories that wait for an instance: a multi-level queue by policy version, each level by deadline.

Invariants: only trajectories of started groups are here (their place is reserved); the level of a trajectory,
the version of its newest token, decides which instances may run it, and its group's deadline does while it
has no token; among those the earliest deadline comes first, siblings stand together, and older groups come
before younger ones. Fresh groups wait elsewhere, behind all of these.
"""

import heapq

from controller.core.state.groups import Trajectory

Entry = tuple[int, int, int, int]  # deadline, group, member, attempt
UNSTARTED = -1  # level of trajectories without a token
ANY = 1 << 62


class DispatchQueue:
    """Heaps with lazy deletion: a trajectory that is no longer queued is skipped when it surfaces."""

    def __init__(self) -> None:
        self._levels: dict[int, list[Entry]] = {}  # newest version -> heap
        self._entries: dict[tuple[int, int], tuple[Trajectory, int]] = {}  # with the deadline
        self.pushed = 0
        """Number of pushes so far."""

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, trajectory: Trajectory, deadline: int) -> None:
        """Queue a trajectory of a group that is due by `deadline`, or change its deadline."""
        assert trajectory.state == "queued"
        self._entries[trajectory.id] = trajectory, deadline
        self.pushed += 1
        level = self._levels.setdefault(trajectory.newest_version, [])
        heapq.heappush(level, (deadline, *trajectory.id.attempt(trajectory.attempt)))

    @property
    def has_unstarted(self) -> bool:
        """Whether a trajectory without a token may be queued."""
        return UNSTARTED in self._levels

    def newest_level(self) -> int:
        """The newest version of any queued token; -1 if there is none."""
        for version in sorted(self._levels, reverse=True):
            if self._first(version) is not None:
                return version
            del self._levels[version]
        return UNSTARTED

    def peek(self, policy_version: int, reach: int = ANY) -> Trajectory | None:
        """The next trajectory that may run under this version; it stays in the queue.

        Either it has begun under this version or an older one, or it has no token and its group is due by
        `reach` (see `Ledger.reach`).
        """
        best: Entry | None = None
        for version in sorted(self._levels):
            if version > policy_version:
                break
            first = self._first(version)
            if first is None:
                del self._levels[version]
            elif (version != UNSTARTED or first[0] <= reach) and (best is None or first < best):
                best = first
        return None if best is None else self._entries[best[1], best[2]][0]

    def remove(self, trajectory: Trajectory) -> None:
        """Take a trajectory out; harmless if it is not queued."""
        self._entries.pop(trajectory.id, None)

    def holds(self, trajectory: Trajectory) -> bool:
        """Whether a trajectory is queued here."""
        return trajectory.id in self._entries

    def tally(self) -> dict[tuple[int, int], int]:
        """Number of queued trajectories by level and deadline."""
        counts: dict[tuple[int, int], int] = {}
        for trajectory, deadline in self._entries.values():
            key = trajectory.newest_version, deadline
            counts[key] = counts.get(key, 0) + 1
        return counts

    def _first(self, version: int) -> Entry | None:
        level = self._levels[version]
        while level:
            deadline, group, member, attempt = level[0]
            trajectory, due = self._entries.get((group, member), (None, 0))
            if trajectory is not None and (trajectory.attempt, trajectory.newest_version, due) == (
                attempt,
                version,
                deadline,
            ):
                return level[0]
            heapq.heappop(level)
        return None
