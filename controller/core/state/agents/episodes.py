"""Episodes: one attempt of an agent at one prompt, its asks, and the time of its environment.

Invariants: an episode is at no more than one agent worker; its asks of a trial are numbered from 0 in each of
its trajectories and never change, so that they can be answered again, in the order in which they are
repeated; an ended trial is never continued; its environment has a deadline while the episode waits for it
alone, and none while the policy is to answer.
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
    begins: int  # number of segments of the trajectory before the turn
    ends: int = 0  # number of segments up to the end of the turn; 0 while it is open
    ending: TurnEnding = "stop"
    is_heard: bool = False  # whether it was asked since the episode was begun last
    heard_at: float = 0.0  # when, in `awake_s`
    took_s: float = 0.0  # from then until its answer was sent

    @property
    def is_open(self) -> bool:
        """Whether its turn is not finished."""
        return not self.ends

    def is_repeated_by(self, ask: Ask) -> bool:
        """Whether an ask of the repeated function equals this one."""
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
    peer: PeerId | None = None  # the agent worker that runs it; None: it waits for one, or has ended
    first_attempt: int = 0  # of its trajectories, before their first asks of this trial
    asked: dict[tuple[int, int], AskedTurn] = field(default_factory=dict)
    """Asks by trajectory and number, in the order in which they came."""
    open: dict[int, AskedTurn] = field(default_factory=dict)
    """Asks whose turns are not finished, by trajectory."""
    saved: tuple[int, int] | None = None
    """Trajectory and number of the ask with which its environment's state was saved last; None: no state."""
    known: int = 0  # number of asks when it was begun last
    heard: int = 0  # number of asks since it was begun last; fewer than `asked` while they are repeated
    failures: int = 0  # of its environment or its function
    processes_lost: int = 0  # processes that died while they ran it, in this trial
    since: float | None = None  # since when it waits for its environment, in `awake_s`; None: it does not
    until: float | None = None  # deadline of the environment, in `awake_s`
    own_s: float = 0.0  # total of earlier waits for its environment, since it was begun last
    asked_at: float | None = None  # since when it waits for the policy, in `awake_s`; None: it does not
    policy_s: float = 0.0  # total of earlier waits for the policy, since it was begun last
    waited: tuple[float, float] = (0.0, 0.0)  # seconds in all for environment and policy, at its end
    overhead_ms: tuple[float, ...] = ()  # of each turn: the worker's wait, less the time known to the core
    ending: Ending | None = None  # None until it has ended
    is_masked: bool = False  # it counts for nothing
    reward: float | None = None  # None: the reward function is to score it
    parts: tuple[tuple[str, float], ...] = ()
    turn_rewards: tuple[tuple[int, int, float], ...] = ()  # trajectory, number, reward
    earned: Earned = ""  # where `reward` was earned, as its worker reported
    noted: tuple[tuple[str, float], ...] = ()  # by `policy.metric`
    has_talk: bool = False  # its messages are in the store, by this trial

    @property
    def is_unbegun(self) -> bool:
        """Whether it waits for an agent worker."""
        return self.peer is None and self.ending is None

    @property
    def is_caught_up(self) -> bool:
        """Whether all known asks were repeated since it was begun last."""
        return self.heard == len(self.asked)

    @property
    def awaits_policy(self) -> bool:
        """Whether it has asked for a turn that is not finished."""
        return any(asked.is_heard for asked in self.open.values())

    @property
    def trained_turns(self) -> list[tuple[int, int]]:
        """Its trained turns, in the order of their asks."""
        return [key for key, asked in self.asked.items() if asked.ask.is_trained]

    @property
    def forks(self) -> tuple[ForkCause, ...]:
        """The cause of each forked conversation that is trained, as far as it was reported."""
        asks = (asked.ask for asked in self.asked.values())
        return tuple(ask.cause for ask in asks if ask.is_trained and ask.cause)

    @property
    def deadline(self) -> float | None:
        """When its environment is given up, in `awake_s`; None while it does not act."""
        return self.until

    @property
    def key(self) -> tuple[int, int, int]:
        """Its key in messages: (group, episode, trial)."""
        return self.group, self.number, self.trial

    def find(self, ask: Ask) -> AskedTurn | None:
        """The earlier ask of this trial with the same trajectory and number; None if there is none."""
        return self.asked.get((ask.member, ask.number))

    def hear(self, asked: AskedTurn, now: float = 0.0) -> None:
        """Note that it has asked this, for the first time or again."""
        asked.is_heard, asked.heard_at = True, now
        self.heard += 1

    def note_saved(self, ask: Ask) -> None:
        """Note the state that came with the newest ask, if one did.

        It is of use only if the asks before it are exactly those whose answers its function has seen.
        """
        if ask.saved:
            place = list(self.asked).index((ask.member, ask.number))
            self.saved = (ask.member, ask.number) if self.heard == place + 1 else None

    def restore(self, group: "Group") -> tuple[SavedTrajectory, ...]:
        """Its conversations up to the ask with which its state was saved; their asks count as heard.

        Empty if it has to begin from its start.
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
        """Note a new ask."""
        asked = AskedTurn(ask, begins)
        self.asked[ask.member, ask.number] = self.open[ask.member] = asked
        self.hear(asked, now)

    def take_back(self, asked: AskedTurn) -> None:
        """Forget an ask whose answer is no longer needed."""
        del self.asked[asked.ask.member, asked.ask.number], self.open[asked.ask.member]

    def wait(self, now: float, limit_s: float) -> None:
        """It waits for its environment from now on, for `limit_s` at most."""
        self.since, self.until = now, now + limit_s
        if self.asked_at is not None:
            self.policy_s += now - self.asked_at
            self.asked_at = None

    def go_on(self, now: float) -> None:
        """Its environment has answered; it waits for the policy from now on."""
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
        """Begin another trial from its start. `attempt`: the newest attempt of its trajectories.

        A late ask of the last trial may have used the attempt after that one, so it is skipped.
        """
        self.leave()
        self.trial += 1
        self.first_attempt = max(attempt, self.first_attempt) + 1
        self.asked, self.open, self.processes_lost, self.saved = {}, {}, 0, None


@dataclass(slots=True)
class Beginnings:
    """Episodes that are beginning, of all groups."""

    is_replaying: bool  # whether episodes of a lost worker repeat their asks, instead of beginning again
    groups: dict[int, None] = field(default_factory=dict)  # groups not all of whose episodes have asked
    count: int = 0  # number of episodes that were begun
