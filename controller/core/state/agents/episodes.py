"""Episodes: one attempt of an agent at one prompt, its asks, and the time of its environment.

Invariants: an episode is at no more than one agent worker; its asks of a trial are numbered from 0 in each of
its trajectories and are never changed, so that they can be answered again, in the order in which they are
asked again; a trial that is over is never gone on with; its environment has a deadline whenever it alone has
the word, and none while the policy is to answer it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from protocol.ids import PeerId
from protocol.messages import Ask, EpisodeEnding, SavedTrajectory, TurnEnding
from protocol.messages.pieces import Earned, ForkCause

if TYPE_CHECKING:
    from controller.core.state.groups import Group

Ending = EpisodeEnding | Literal["timeout"]
LIVE_GROUPS = ("beginning", "waiting", "generating")
"""States of groups whose episodes run."""


@dataclass(slots=True)
class AskedTurn:
    """One ask of an episode, and the turn that answers it."""

    ask: Ask
    begins: int  # segments of the trajectory before the turn
    ends: int = 0  # and up to its end; 0 while it is open
    ending: TurnEnding = "stop"
    is_heard: bool = False  # since the episode was begun last
    heard_at: float = 0.0  # in `awake_s`, then
    took_s: float = 0.0  # from then until its answer was sent

    @property
    def is_open(self) -> bool:
        """Whether its turn is not over."""
        return not self.ends

    def is_repeated_by(self, ask: Ask) -> bool:
        """Whether this ask, of the function that runs again, is the same."""
        mine = self.ask
        return (mine.member, mine.attempt, mine.keep, mine.given, mine.digest, mine.is_trained) == (
            ask.member, ask.attempt, ask.keep, ask.given, ask.digest, ask.is_trained,
        )  # fmt: skip


@dataclass(slots=True)
class Episode:
    """One attempt of an agent at one prompt."""

    group: int
    number: int  # its place in the group, which is also the number of its first trajectory
    trial: int = 1
    peer: PeerId | None = None  # the agent worker that runs it; None: it is to be begun, or over
    first_attempt: int = 0  # of its trajectories, before their first asks of this trial
    asked: dict[tuple[int, int], AskedTurn] = field(default_factory=dict)
    """By trajectory and number, in the order in which they were asked."""
    open: dict[int, AskedTurn] = field(default_factory=dict)
    """Those whose turns are not over, by trajectory."""
    saved: tuple[int, int] | None = None
    """With which ask its environment's state was kept last, by trajectory and number; None: it has none."""
    known: int = 0  # asks that were known when it was begun last
    heard: int = 0  # asks of this trial since it was begun last; fewer than `asked` while they are repeated
    failures: int = 0  # of its environment or its function
    processes_lost: int = 0  # that ran it, in this trial
    since: float | None = None  # its environment has the word; in `awake_s`; None: the policy has it
    until: float | None = None  # the environment is to be done by then
    own_s: float = 0.0  # that its environment took before, since it was begun last
    asked_at: float | None = None  # the policy has the word; in `awake_s`; None: it has not
    policy_s: float = 0.0  # that the policy had the word before, since it was begun last
    waited: tuple[float, float] = (0.0, 0.0)  # seconds of its environment and of the policy, once it is over
    overhead_ms: tuple[float, ...] = ()  # of each turn: its wait, without what the core knows of
    ending: Ending | None = None  # None until it is over
    is_masked: bool = False  # it counts for nothing
    reward: float | None = None  # None: the reward function is to score it
    parts: tuple[tuple[str, float], ...] = ()
    turn_rewards: tuple[tuple[int, int, float], ...] = ()  # trajectory, number, reward
    earned: Earned = ""  # where `reward` was, as its worker said
    noted: tuple[tuple[str, float], ...] = ()  # by `policy.metric`
    has_talk: bool = False  # its messages are in the store, by this trial

    @property
    def is_unbegun(self) -> bool:
        """Whether an agent worker has to be found for it."""
        return self.peer is None and self.ending is None

    @property
    def is_caught_up(self) -> bool:
        """Whether all asks that are known were heard since it was begun last."""
        return self.heard == len(self.asked)

    @property
    def awaits_policy(self) -> bool:
        """Whether its environment has asked for a turn that is not over."""
        return any(asked.is_heard for asked in self.open.values())

    @property
    def trained_turns(self) -> list[tuple[int, int]]:
        """Its turns that are trained, in the order in which they were asked for."""
        return [key for key, asked in self.asked.items() if asked.ask.is_trained]

    @property
    def forks(self) -> tuple[ForkCause, ...]:
        """Why it has each further conversation that is trained, as far as that was told."""
        asks = (asked.ask for asked in self.asked.values())
        return tuple(ask.cause for ask in asks if ask.is_trained and ask.cause)

    @property
    def deadline(self) -> float | None:
        """When its environment is given up, in `awake_s`; None while it is not its turn."""
        return self.until

    @property
    def key(self) -> tuple[int, int, int]:
        """How messages name it."""
        return self.group, self.number, self.trial

    def find(self, ask: Ask) -> AskedTurn | None:
        """What it has asked there in this trial."""
        return self.asked.get((ask.member, ask.number))

    def hear(self, asked: AskedTurn, now: float = 0.0) -> None:
        """It has asked this, for the first time or again."""
        asked.is_heard, asked.heard_at = True, now
        self.heard += 1

    def note_saved(self, ask: Ask) -> None:
        """A state came with an ask that it was heard of just now, for the first time or again.

        It is of use only where the asks before it are just those that its function has heard the answers of.
        """
        if ask.saved:
            place = list(self.asked).index((ask.member, ask.number))
            self.saved = (ask.member, ask.number) if self.heard == place + 1 else None

    def restore(self, group: "Group") -> tuple[SavedTrajectory, ...]:
        """Its conversations up to the ask that its state was saved with, whose asks count as heard.

        Nothing if it has to begin from its start.
        """
        if self.saved is None:
            return ()
        found: dict[int, SavedTrajectory] = {}
        for (member, number), asked in self.asked.items():
            if (member, number) == self.saved:
                break
            self.hear(asked)
            segments = group.members[member].segments[: asked.ends]
            length = sum(segment.count for segment in segments)
            found[member] = SavedTrajectory(number + 1, length, segments[-1].attempt, asked.ask.is_trained)
        return tuple(found.values())

    def add(self, ask: Ask, *, begins: int, now: float) -> None:
        """It asks something new."""
        asked = AskedTurn(ask, begins)
        self.asked[ask.member, ask.number] = self.open[ask.member] = asked
        self.hear(asked, now)

    def take_back(self, asked: AskedTurn) -> None:
        """The answer is not wanted any more."""
        del self.asked[asked.ask.member, asked.ask.number], self.open[asked.ask.member]

    def wait(self, now: float, limit_s: float) -> None:
        """Its environment has the word from now on, for so long at most."""
        self.since, self.until = now, now + limit_s
        if self.asked_at is not None:
            self.policy_s += now - self.asked_at
            self.asked_at = None

    def go_on(self, now: float) -> None:
        """Its environment has said something; the policy has the word."""
        if self.since is not None:
            self.own_s += now - self.since
            self.asked_at = now
        self.since = self.until = None

    def conclude(self, now: float, awaited: Iterable[tuple[int, int, float]]) -> None:
        """Note where its time went; its function has returned.

        `awaited`: trajectory, number and milliseconds that its worker waited for turns.
        """
        self.go_on(now)
        self.waited = self.own_s, self.policy_s
        self.overhead_ms = tuple(
            max(0.0, waited_ms - 1000 * self.asked[member, number].took_s)
            for member, number, waited_ms in awaited
            if (member, number) in self.asked
        )

    def leave(self) -> None:
        """It is at no worker any more."""
        self.peer, self.heard, self.own_s, self.policy_s = None, 0, 0.0, 0.0
        self.since = self.until = self.asked_at = None
        for asked in self.asked.values():
            asked.is_heard = False

    def begin_anew(self, attempt: int) -> None:
        """Another trial, with nothing known. `attempt`: the newest of its trajectories.

        A late ask of the last one may have taken the attempt after the newest, so that one is left out.
        """
        self.leave()
        self.trial += 1
        self.first_attempt = max(attempt, self.first_attempt) + 1
        self.asked, self.open, self.processes_lost, self.saved = {}, {}, 0, None


@dataclass(slots=True)
class Beginnings:
    """Episodes that begin, of all groups."""

    is_replaying: bool  # those of a lost worker repeat what they have asked
    groups: dict[int, None] = field(default_factory=dict)  # of which not all episodes have asked
    count: int = 0  # of episodes that were begun
