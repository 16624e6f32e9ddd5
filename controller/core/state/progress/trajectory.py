"""A trajectory in flight: one run of tokens that the policy continues.

Invariants: segments only grow, and the versions of sampled ones never decrease; while a trajectory only
continues, its progress is in the columns of its instance (`Columns`), and it catches up when it is read, so
readers see no difference.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from controller.core.state.transitions import TrajectoryState
from protocol.ids import PeerId, TrajectoryId
from protocol.messages import GIVEN, Ask, Ending, Segment

if TYPE_CHECKING:
    from controller.core.state.progress.columns import Given

FIRST_EVALUATION_GROUP = 1 << 40  # training prompts are numbered from 0 and never get that far


@dataclass(slots=True)
class Trajectory:
    """One run of tokens that the policy continues."""

    id: TrajectoryId
    prompt_tokens: int
    state: TrajectoryState = "queued"
    attempt: int = 0  # of the newest route; 0: never routed
    peer: PeerId | None = None  # the instance where it runs
    home: PeerId | None = None  # the instance where its last turn ended, which may still have its KV
    moved_from: PeerId | None = None  # the instance before a move, to which it does not return at once
    ending: Ending = ""
    given_tokens: int = 0  # by its environment
    turn_start: int = 0  # sampled tokens before this turn
    most: int = 0  # token limit of this turn; 0: `rollout.max_response_tokens`
    begins: int = 0  # number of segments before this turn
    turns: int = 0  # number of turns asked for
    is_trained: bool = True  # an agent may ask for tokens that are not
    is_urgent: bool = False  # whether it needs much of the time left, by its last prediction
    expected_tokens: int = 0  # final response length, by its last prediction
    next_prediction_at: int = 0  # response tokens at which it is predicted again
    is_called_back: bool = False  # whether its instance was told to hand it back
    going: "Given | None" = field(default=None, init=False, repr=False, compare=False)
    """Its attempt while its progress is in columns; the fields below lag behind then."""
    _reported: int = field(default=0, init=False)
    _response_tokens: int = field(default=0, init=False)
    _segments: list[Segment] = field(default_factory=list, init=False)
    _since: float = field(default=0.0, init=False)

    @property
    def reported(self) -> int:
        """Accepted tokens of this attempt."""
        if self.going is not None:
            self._catch_up_with(self.going)
        return self._reported

    @reported.setter
    def reported(self, tokens: int) -> None:
        self.stand_alone()
        self._reported = tokens

    @property
    def response_tokens(self) -> int:
        """Tokens sampled for it."""
        if self.going is not None:
            self._catch_up_with(self.going)
        return self._response_tokens

    @response_tokens.setter
    def response_tokens(self, tokens: int) -> None:
        self.stand_alone()
        self._response_tokens = tokens

    @property
    def segments(self) -> list[Segment]:
        """Its runs of tokens of one attempt and version, in order."""
        if self.going is not None:
            self._catch_up_with(self.going)
        return self._segments

    @property
    def since(self) -> float:
        """Time of its route or its last token, or of its call back if it was called back; in `awake_s`."""
        if self.going is not None:
            self._catch_up_with(self.going)
        return self._since

    @since.setter
    def since(self, moment: float) -> None:
        if self.going is not None:
            self._catch_up_with(self.going)
        self._since = moment

    def _catch_up_with(self, going: "Given") -> None:
        self.catch_up(going.reported, going.heard_at)

    def catch_up(self, reported: int, heard_at: float) -> None:
        """Take over what its instance reported of its attempt since the last read: its tokens, and when."""
        more = reported - self._reported
        if more:
            segments = self._segments
            attempt, policy_version, had = segments[-1]
            segments[-1] = Segment(attempt, policy_version, had + more)
            self._reported = reported
            self._response_tokens += more
            if not self.is_called_back:
                self._since = heard_at

    def stand_alone(self) -> None:
        """Leave the columns: keep its progress here."""
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
        """Tokens that the policy did not sample: the prompt, and those given by the environment."""
        return self.prompt_tokens + self.given_tokens

    @property
    def turn_tokens(self) -> int:
        """Tokens sampled in this turn; without an agent, all sampled tokens."""
        return self.response_tokens - self.turn_start

    @property
    def newest_version(self) -> int:
        """Version of its newest sampled token, -1 before the first: it continues only at or above it."""
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
        """Take the tokens given by its environment, and the limit of the turn that follows."""
        self.segments.append(Segment(ask.attempt, GIVEN, ask.given))
        self.attempt, self.reported = ask.attempt, 0
        self.given_tokens += ask.given
        self.turn_start, self.most = self.response_tokens, ask.max_new_tokens
        self.begins = len(self.segments)
        self.turns += 1

    def take_turn_back(self) -> int:
        """Forget the open turn and the tokens given for it; returns its number of sampled tokens."""
        tokens = self.turn_tokens
        self.given_tokens -= self.segments[self.begins - 1].count
        del self.segments[self.begins - 1 :]
        self.response_tokens -= tokens
        self.turns -= 1
        return tokens

    def clear(self) -> int:
        """Forget all tokens, but not its attempt's number; returns the number of sampled tokens."""
        tokens = self.response_tokens
        self.stand_alone()
        self._segments = []
        self.response_tokens = self.given_tokens = self.turn_start = self.most = self.begins = self.turns = 0
        return tokens

    def go_on(self, attempt: int, policy_version: int, count: int) -> bool:
        """Take new tokens if they continue the last segment; returns whether they do."""
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
        """Take new tokens if they may follow its last ones; returns whether they may."""
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
