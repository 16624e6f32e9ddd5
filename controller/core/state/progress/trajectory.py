"""One run of tokens that the policy continues, on its way.

Invariants: its segments never change, only grow, and the versions of sampled ones never decrease; while it
does nothing but go on, its progress stands in the columns of its instance (`Columns`), and it takes that over
when it is looked at: nobody who reads it sees a difference.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.core.state.transitions import TrajectoryState
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import GIVEN, Ask, Ending, Segment

if TYPE_CHECKING:
    from controller.core.state.progress.columns import Given

FIRST_EVALUATION_GROUP = 1 << 40  # prompts of training are numbered from 0 and never come that far


@dataclass(slots=True)
class Trajectory:
    """One run of tokens that the policy continues, on its way."""

    id: TrajectoryId
    prompt_tokens: int
    state: TrajectoryState = "queued"
    attempt: int = 0  # of the newest route; 0: never routed
    peer: PeerId | None = None  # where it runs
    home: PeerId | None = None  # where its last turn ended, which may still have its KV
    moved_from: PeerId | None = None  # the instance before a move; it does not go back there at once
    ending: Ending = ""
    given_tokens: int = 0  # by its environment
    turn_start: int = 0  # sampled tokens before this turn
    most: int = 0  # tokens that this turn may have; 0: `rollout.max_response_tokens`
    begins: int = 0  # segments before this turn
    turns: int = 0  # that were asked for
    is_trained: bool = True  # an agent may ask for tokens that are not
    is_urgent: bool = False  # it needs much of the time that is left, as of when it was last looked at
    expected_tokens: int = 0  # final response length, as predicted when it was last looked at
    next_prediction_at: int = 0  # response tokens from which on its prediction is made again
    is_called_back: bool = False  # its instance was asked to hand it back
    going: "Given | None" = field(default=None, init=False, repr=False, compare=False)
    """Its attempt, while its progress stands in columns: what is below lags behind then."""
    _reported: int = field(default=0, init=False)
    _response_tokens: int = field(default=0, init=False)
    _segments: list[Segment] = field(default_factory=list, init=False)
    _since: float = field(default=0.0, init=False)

    @property
    def reported(self) -> int:
        """Tokens of this attempt that were accepted."""
        if self.going is not None:
            self.catch_up(self.going)
        return self._reported

    @reported.setter
    def reported(self, tokens: int) -> None:
        self.stand_alone()
        self._reported = tokens

    @property
    def response_tokens(self) -> int:
        """Tokens that were sampled for it."""
        if self.going is not None:
            self.catch_up(self.going)
        return self._response_tokens

    @response_tokens.setter
    def response_tokens(self, tokens: int) -> None:
        self.stand_alone()
        self._response_tokens = tokens

    @property
    def segments(self) -> list[Segment]:
        """What it consists of."""
        if self.going is not None:
            self.catch_up(self.going)
        return self._segments

    @property
    def since(self) -> float:
        """When it was routed, got its last token or was called back."""
        if self.going is not None:
            self.catch_up(self.going)
        return self._since

    @since.setter
    def since(self, moment: float) -> None:
        if self.going is not None:
            self.catch_up(self.going)
        self._since = moment

    def catch_up(self, going: "Given") -> None:
        """Take over what its instance has told of this attempt since it was last looked at."""
        more = going.reported - self._reported
        if more:
            attempt, policy_version, had = self._segments[-1]
            self._segments[-1] = Segment(attempt, policy_version, had + more)
            self._reported += more
            self._response_tokens += more
            if not self.is_called_back:
                self._since = going.heard_at

    def stand_alone(self) -> None:
        """Have its progress here from now on."""
        if self.going is not None:
            self.going.leave()

    @property
    def is_evaluation(self) -> bool:
        """Whether it answers a held-out prompt."""
        return self.id.group >= FIRST_EVALUATION_GROUP

    @property
    def resident_tokens(self) -> int:
        """Tokens that it holds in an instance's KV cache."""
        return self.prompt_tokens + self.given_tokens + self.response_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens that it did not sample: its prompt, and what its environment has given."""
        return self.prompt_tokens + self.given_tokens

    @property
    def turn_tokens(self) -> int:
        """Tokens sampled in this turn; of a response that is no agent's, all."""
        return self.response_tokens - self.turn_start

    @property
    def newest_version(self) -> int:
        """Version of its newest sampled token, -1 before the first: it may go on only at or above it."""
        for _, policy_version, _ in reversed(self._segments):
            if policy_version != GIVEN:
                return policy_version
        return -1

    @property
    def first_version(self) -> int:
        """Version of its first sampled token, -1 if there is none."""
        for _, policy_version, _ in self._segments:
            if policy_version != GIVEN:
                return policy_version
        return -1

    def give(self, ask: Ask) -> None:
        """Take what its environment says, and the limit of the turn that follows."""
        self.segments.append(Segment(ask.attempt, GIVEN, ask.given))
        self.attempt, self.reported = ask.attempt, 0
        self.given_tokens += ask.given
        self.turn_start, self.most = self.response_tokens, ask.max_new_tokens
        self.begins = len(self.segments)
        self.turns += 1

    def take_turn_back(self) -> int:
        """Forget the turn that is open, with what was given for it; returns its tokens."""
        tokens = self.turn_tokens
        self.given_tokens -= self.segments[self.begins - 1].count
        del self.segments[self.begins - 1 :]
        self.response_tokens -= tokens
        self.turns -= 1
        return tokens

    def clear(self) -> int:
        """Forget all that it has, but for the number of its newest attempt; returns the tokens."""
        tokens = self.response_tokens
        self.stand_alone()
        self._segments = []
        self.response_tokens = self.given_tokens = self.turn_start = self.most = self.begins = self.turns = 0
        return tokens

    def go_on(self, attempt: int, policy_version: int, count: int) -> bool:
        """Take new tokens, if they go on with the last segment; else nothing is changed."""
        self.stand_alone()
        segments = self._segments
        if not segments:
            return False
        last_attempt, last_version, had = segments[-1]
        if last_attempt != attempt or last_version != policy_version:
            return False
        segments[-1] = Segment(attempt, policy_version, had + count)
        self._reported += count
        self._response_tokens += count
        return True

    def extend(self, attempt: int, policy_version: int, count: int) -> bool:
        """Take new tokens; whether they may follow those that are there."""
        if self.go_on(attempt, policy_version, count):
            return True
        segments = self._segments
        if segments:
            last_version = segments[-1].policy_version
            if policy_version < (self.newest_version if last_version == GIVEN else last_version):
                return False
        segments.append(Segment(attempt, policy_version, count))
        self._reported += count
        self._response_tokens += count
        return True
