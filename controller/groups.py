"""Groups and their trajectories: one prompt, its responses, and where each of them stands.

Invariants: a trajectory is in exactly one of the states queued, running, finished; its attempt grows with
every route, so that words of an abandoned attempt are recognised; its segments never change, only grow, and
their policy versions never decrease; a group is scored only when all of its trajectories are finished.
"""

from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import PeerId, TrajectoryId
from protocol.messages import Delta, Ending, Segment, Segments, TrainItem

GroupState = Literal["encoding", "waiting", "generating", "scoring", "occupied", "training"]


@dataclass(slots=True)
class Trajectory:
    """One response on its way."""

    id: TrajectoryId
    prompt_tokens: int
    state: Literal["queued", "running", "finished"] = "queued"
    attempt: int = 0  # of the newest route; 0: never routed
    reported: int = 0  # tokens of this attempt that were accepted
    peer: PeerId | None = None  # where it runs
    ending: Ending = ""
    segments: list[Segment] = field(default_factory=list)
    response_tokens: int = 0

    @property
    def resident_tokens(self) -> int:
        """Tokens that it holds in an instance's KV cache."""
        return self.prompt_tokens + self.response_tokens

    @property
    def newest_version(self) -> int:
        """Version of its newest token, -1 before the first: it may go on only at or above it."""
        return self.segments[-1].policy_version if self.segments else -1

    def expects(self, delta: Delta, peer: PeerId) -> bool:
        """Whether a delta continues what this trajectory is doing now; anything else is late and is
        dropped."""
        return (
            self.state == "running"
            and self.peer == peer
            and self.attempt == delta.attempt
            and self.reported == delta.start
            and delta.policy_version >= self.newest_version
        )

    def extend(self, delta: Delta) -> None:
        """Take the tokens of an expected delta."""
        if not delta.count:
            return
        last = self.segments[-1] if self.segments else None
        if last and (last.attempt, last.policy_version) == (delta.attempt, delta.policy_version):
            self.segments[-1] = last._replace(count=last.count + delta.count)
        else:
            self.segments.append(Segment(delta.attempt, delta.policy_version, delta.count))
        self.reported += delta.count
        self.response_tokens += delta.count


@dataclass(slots=True)
class Group:
    """All trajectories of one prompt."""

    id: int
    state: GroupState = "encoding"
    prompt_tokens: int = 0
    policy_version: int | None = None  # oldest version that any member was started under; the group's age
    members: list[Trajectory] = field(default_factory=list)
    rewards: tuple[float, ...] = ()
    advantages: tuple[float, ...] = ()
    score_attempt: int = 0
    score_failures: int = 0

    def make_members(self, count: int) -> None:
        """Create the trajectories, all queued."""
        self.members = [Trajectory(TrajectoryId(self.id, i), self.prompt_tokens) for i in range(count)]

    @property
    def is_complete(self) -> bool:
        """Whether every response is finished."""
        return all(member.state == "finished" for member in self.members)

    @property
    def response_tokens(self) -> int:
        """Tokens generated for the group so far."""
        return sum(member.response_tokens for member in self.members)

    def oldest_token_version(self) -> int:
        """Version of the oldest token in the group, which is never older than `policy_version`."""
        assert self.policy_version is not None, f"group {self.id} has not started"
        first = [member.segments[0].policy_version for member in self.members if member.segments]
        return min(first, default=self.policy_version)

    def train_items(self) -> tuple[TrainItem, ...]:
        """The group as the trainer gets it."""
        return tuple(
            TrainItem(self.id, m.id.member, m.prompt_tokens, reward, advantage, m.ending, frozen_segments(m))
            for m, reward, advantage in zip(self.members, self.rewards, self.advantages, strict=True)
        )


def frozen_segments(trajectory: Trajectory) -> Segments:
    """The segments as they travel."""
    return tuple(trajectory.segments)
