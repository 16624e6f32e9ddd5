"""Trajectories that wait for an instance: by deadline, then group, then place in it.

Invariants: only trajectories of started groups are here (their slot is reserved); the earliest deadline
comes first,
siblings stand together, older groups come before younger ones. Fresh groups wait elsewhere, behind all of
these.
"""

import heapq

from controller.groups import Trajectory


class DispatchQueue:
    """A heap with lazy deletion: a trajectory that is no longer queued is skipped when it surfaces."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int]] = []  # deadline, group, member, attempt
        self._entries: dict[tuple[int, int], Trajectory] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, trajectory: Trajectory, deadline: int) -> None:
        """Queue a trajectory of a group that is due by `deadline`."""
        assert trajectory.state == "queued"
        self._entries[trajectory.id] = trajectory
        heapq.heappush(self._heap, (deadline, *trajectory.id, trajectory.attempt))

    def peek(self) -> Trajectory | None:
        """The next to route, left in place."""
        while self._heap:
            _, group, member, attempt = self._heap[0]
            trajectory = self._entries.get((group, member))
            if trajectory is not None and trajectory.attempt == attempt:
                return trajectory
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Trajectory:
        """Take what `peek` showed."""
        trajectory = self.peek()
        assert trajectory is not None, "pop from an empty queue"
        heapq.heappop(self._heap)
        del self._entries[trajectory.id]
        return trajectory

    def remove(self, trajectory: Trajectory) -> None:
        """Forget a trajectory whose group was aborted; harmless if it is not queued."""
        self._entries.pop(trajectory.id, None)
