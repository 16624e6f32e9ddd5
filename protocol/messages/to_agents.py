"""What the controller says to agent workers: which episodes begin and end, and what the policy answers."""

from typing import ClassVar

from protocol.ids import TrajectoryId
from protocol.messages.pieces import (
    ControllerMessage,
    Count,
    Many,
    Party,
    Piece,
    SavedTrajectory,
    Segments,
    Text,
    TurnEnding,
    response_pieces,
)
from protocol.messages.record import record


@record
class Begin(ControllerMessage):
    """Begin an episode: run the agent's function from its start. Frame 0: the row of its group.

    An episode that was begun before, on another worker or before a restart, has `known` turns: an Ask that
    repeats a known one is answered at once with the Turn that was sampled then.

    If its state was saved, the function goes on from there instead: `restored` has its conversations in the
    order of their first asks, frame 1 the state, and the first Ask is the one that the state came with.
    """

    tag: ClassVar[int] = 49
    heard_by: ClassVar[tuple[Party, ...]] = ("agent",)
    group: Count
    episode: Count  # its place in the group, from 0
    trial: Count  # from 1; one more each time that the episode begins anew, with no turn known
    seed: Count  # of the environment: one per group
    attempt: Count  # the first Ask of each of its trajectories names the attempt after this one
    episodes: Count  # of the group: see Ask.member
    known: Count = 0  # asks that the controller has heard in this trial
    restored: Many[SavedTrajectory] = ()

    def outgoing_payload(self) -> list[list[Piece]]:
        state = [[Piece("state", self.group, self.episode, self.trial)]] if self.restored else []
        return [[Piece("row", self.group)], *state]


@record
class Turn(ControllerMessage):
    """Answer to an Ask: what the policy sampled. Frame 0: its tokens; frame 1: their logprobs."""

    tag: ClassVar[int] = 50
    heard_by: ClassVar[tuple[Party, ...]] = ("agent",)
    group: Count
    episode: Count
    trial: Count
    number: Count  # of the Ask, in its trajectory
    member: Count  # trajectory that it belongs to
    attempt: Count  # newest of the trajectory: its next Ask names the one after this
    ending: TurnEnding
    segments: Segments  # of the turn alone

    def outgoing_payload(self) -> list[list[Piece]]:
        id = TrajectoryId(self.group, self.member)
        return [response_pieces("tokens", id, self.segments), response_pieces("logprobs", id, self.segments)]


@record
class EndEpisodes(ControllerMessage):
    """Drop these episodes: cancel their functions, and report nothing more of them."""

    tag: ClassVar[int] = 51
    heard_by: ClassVar[tuple[Party, ...]] = ("agent",)
    episodes: Many[tuple[Count, Count, Count]]  # (group, episode, trial)
    why: Text


ToAgent = Begin | Turn | EndEpisodes
