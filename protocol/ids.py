"""Names of things that cross the wire.

Invariants: ids are chosen by the controller from counters, never by a worker, and are never reused in a run.
A group is named by the ordinal of its prompt; a trajectory by its group and its place in it.
"""

from typing import NamedTuple

PeerId = str
"""Routing id of one worker *process start*, hexadecimal. A respawned worker is a new peer, so late words of
the dead one cannot be mistaken for it."""


class TrajectoryId(NamedTuple):
    """One response to one prompt."""

    group: int  # ordinal of the prompt over the whole run, from 0
    member: int  # place among the group's siblings, from 0

    def attempt(self, number: int) -> tuple[int, int, int]:
        """One attempt at it, as messages name it: group, member, attempt."""
        return self.group, self.member, number

    def __str__(self) -> str:
        return f"{self.group}.{self.member}"
