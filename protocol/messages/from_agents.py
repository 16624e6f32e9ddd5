"""What agent workers tell the controller about their episodes.

Invariant: an episode is named by its group, its place in it and its trial; a message about a trial that is
over changes nothing.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from protocol.messages.from_workers import FromAnyRole
from protocol.messages.pieces import (
    MAX_METRICS,
    Count,
    Earned,
    EpisodeEnding,
    ForkCause,
    Frame,
    Many,
    Name,
    Party,
    Real,
    Stretch,
    Text,
    WorkerMessage,
)
from protocol.messages.record import record


@record
class Ask(WorkerMessage):
    """It is the policy's turn in an episode: continue this trajectory. Frame 0: the given tokens (int32).

    Frame 1, where `saved` is not 0: what the episode needs to go on from here, which is kept with the ask.

    The given tokens follow the `keep` tokens that make up the trajectory so far. Answered by Turn. An episode
    has one trajectory, and one more for each conversation that does not continue another one at its end. Each
    trajectory has at most one open ask at a time; several trajectories may have one at once.
    """

    tag: ClassVar[int] = 25
    said_by: ClassVar[tuple[Party, ...]] = ("agent",)
    group: Count
    episode: Count
    trial: Count
    number: Count  # of the ask in its trajectory and this trial, from 0
    # the trajectory: the k-th of an episode, in the order of first asks, is `episode + k * Begin.episodes`
    member: Count
    attempt: Count  # that the given run takes: the one after that of Begin, or of the trajectory's last Turn
    keep: Count  # tokens, given and sampled, that the trajectory has; 0: it begins here
    given: Count  # tokens in the frame
    digest: Name  # of the given tokens: hexadecimal blake2b of 16 bytes
    max_new_tokens: Count  # of the turn: 1 to `agent.max_turn_tokens`
    is_trained: bool = True  # the same in all asks of a trajectory
    saved: Count = 0  # bytes of the state, only where no other ask of the episode is open; 0: there is none
    cause: ForkCause = ""  # why it begins another trajectory than the first of its episode

    def incoming_frames(self) -> list[Frame]:
        return [Frame("tokens", self.given), *([Frame("state", self.saved)] if self.saved else [])]

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        kept = [Stretch("tokens", self.member, self.attempt, 0, frames[0])]
        if self.saved:
            kept.append(Stretch("state", self.episode, self.trial, 0, frames[1]))
        yield self.group, kept


@record
class EpisodeEnded(WorkerMessage):
    """The agent's function has returned, after at least one Turn that is trained."""

    tag: ClassVar[int] = 26
    said_by: ClassVar[tuple[Party, ...]] = ("agent",)
    group: Count
    episode: Count
    trial: Count
    ending: EpisodeEnding
    reward: Many[Real]  # one, of the whole episode; (): `reward.function` scores it
    parts: Annotated[tuple[tuple[Name, Real], ...], Meta(max_length=MAX_METRICS)] = ()  # of the reward
    turn_rewards: Many[tuple[Count, Count, Real]] = ()  # (member, number of the Ask, reward)
    metrics: Annotated[tuple[tuple[Name, Real], ...], Meta(max_length=MAX_METRICS)] = ()
    talk: Count = (
        0  # bytes of the messages of its first conversation, for whoever scores it; 0: there are none
    )

    # (member, number of the Ask, milliseconds) for which the worker awaited each Turn that it has heard
    awaited: Many[tuple[Count, Count, Real]] = ()
    log: Text = ""  # what its function logged, for people
    earned: Earned = ""

    def incoming_frames(self) -> list[Frame]:
        return [Frame("talk", self.talk)] if self.talk else []

    def kept(self, frames: tuple[bytes, ...]) -> Iterator[tuple[int, list[Stretch]]]:
        if self.talk:
            yield self.group, [Stretch("talk", self.episode, self.trial, 0, frames[0])]


@record
class EpisodeFailed(WorkerMessage):
    """An episode ended without a reward, and not through a fault of the policy."""

    tag: ClassVar[int] = 27
    said_by: ClassVar[tuple[Party, ...]] = ("agent",)
    group: Count
    episode: Count
    trial: Count
    # `environment`: it was lost, or says so; `agent`: its function raised, or returned what is no reward, or
    # returned before a Turn; `process`: the process that ran it ended, so it goes on with its turns known;
    # `limit`: it came to a limit before a Turn, as its row gives more text than a trajectory may have
    kind: Literal["environment", "agent", "process", "limit"]
    reason: Text  # one sentence, then the traceback if there is one
    row: Text  # the data row, as JSON, shortened


FromAgent = FromAnyRole | Ask | EpisodeEnded | EpisodeFailed
