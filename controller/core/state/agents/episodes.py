"""Episodes: one attempt of an agent at one prompt, its asks, and the time of its environment.

Invariants: an episode is at no more than one agent worker; its asks of a trial are numbered from 0 and are
never changed, so that they can be answered again; a trial that is over is never gone on with; its environment
has a deadline whenever it has the word, and none while the policy has it.
"""

from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import PeerId
from protocol.messages import Ask, EpisodeEnding, TurnEnding

Ending = EpisodeEnding | Literal["timeout"]


@dataclass(slots=True)
class AskedTurn:
    """One ask of an episode, and the turn that answers it."""

    ask: Ask
    begins: int  # segments of the trajectory before the turn
    ends: int = 0  # and up to its end; 0 while it is open
    ending: TurnEnding = "stop"

    @property
    def is_open(self) -> bool:
        """Whether its turn is not over."""
        return not self.ends

    def is_repeated_by(self, ask: Ask) -> bool:
        """Whether this ask, of the function that runs again, is the same."""
        mine = self.ask
        return (mine.member, mine.attempt, mine.keep, mine.given, mine.digest) == (
            ask.member, ask.attempt, ask.keep, ask.given, ask.digest,
        )  # fmt: skip


@dataclass(slots=True)
class Episode:
    """One attempt of an agent at one prompt."""

    group: int
    number: int  # its place in the group, which is also the number of its trajectory
    trial: int = 1
    peer: PeerId | None = None  # the agent worker that runs it; None: it is to be begun, or over
    first_attempt: int = 0  # of its trajectory, before its first ask of this trial
    asked: list[AskedTurn] = field(default_factory=list)
    known: int = 0  # asks that were known when it was begun last
    heard: int = 0  # asks of this trial since it was begun last; fewer than `asked` while they are repeated
    failures: int = 0  # of its environment or its function
    processes_lost: int = 0  # that ran it, in this trial
    since: float | None = None  # its environment has the word; in `awake_s`; None: the policy has it
    until: float | None = None  # the environment is to be done by then
    own_s: float = 0.0  # that its environment took before, since it was begun last
    ending: Ending | None = None  # None until it is over
    is_masked: bool = False  # it counts for nothing
    reward: float | None = None  # None: the reward function is to score it
    parts: tuple[tuple[str, float], ...] = ()
    turn_rewards: tuple[tuple[int, float], ...] = ()
    noted: tuple[tuple[str, float], ...] = ()  # by `policy.metric`

    @property
    def is_unbegun(self) -> bool:
        """Whether an agent worker has to be found for it."""
        return self.peer is None and self.ending is None

    @property
    def is_caught_up(self) -> bool:
        """Whether all asks that are known were heard since it was begun last."""
        return self.heard == len(self.asked)

    @property
    def deadline(self) -> float | None:
        """When its environment is given up, in `awake_s`; None while it is not its turn."""
        return self.until

    @property
    def key(self) -> tuple[int, int, int]:
        """How messages name it."""
        return self.group, self.number, self.trial

    def wait(self, now: float, limit_s: float) -> None:
        """Its environment has the word from now on, for so long at most."""
        self.since, self.until = now, now + limit_s

    def go_on(self, now: float) -> None:
        """Its environment has said something; the policy has the word."""
        if self.since is not None:
            self.own_s += now - self.since
        self.since = self.until = None

    def leave(self) -> None:
        """It is at no worker any more."""
        self.peer, self.heard, self.own_s = None, 0, 0.0
        self.since = self.until = None

    def begin_anew(self, attempt: int) -> None:
        """Another trial, with nothing known.

        A late ask of the last one may have taken the `attempt` after the newest, so that one is left out.
        """
        self.leave()
        self.trial += 1
        self.first_attempt, self.asked, self.processes_lost = attempt + 1, [], 0
