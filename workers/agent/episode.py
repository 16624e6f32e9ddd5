"""One episode as the worker sees it: its conversations, its limits, and its open questions.

Invariants: no I/O; requests of the user's process are checked here before anything is sent for them; a limit
is reported before a token is sampled beyond it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from protocol.messages import Ask, Begin, Turn
from protocol.messages.pieces import ForkCause
from protocol.settings import WorkerSettings
from workers.agent.conversations import Conversations, Placed
from workers.agent.messages import TOO_DEEP, CheckedHistory, spoken
from workers.agent.policy import MAX_STATE_MB, BudgetExceeded, too_large
from workers.agent.rendering.long_texts import LongText
from workers.agent.rendering.renderer import TEMPLATE_ERRORS, Renderer, message_of
from workers.agent.saved_state import pack, unpack

EpisodeKey = tuple[int, int, int]
"""(group, episode, trial), as in messages."""
Asked = tuple[Ask, tuple[bytes, ...]]
"""A question to the controller, and its frames."""


class SlowRequest(Exception):
    """A request whose text takes long to encode, and which is therefore not placed yet.

    Nothing else may be done with the episode before `open` was called.
    """

    def __init__(self, place: Callable[[Renderer | None], Placed], open: Callable[[Placed], Asked]) -> None:
        """`place`: for a thread, with a renderer that may take long; it raises ValueError.

        `open`: for the event loop, with the result of `place`; it raises as `HostedEpisode.ask`.
        """
        super().__init__("The text of the request takes long to encode.")
        self.place, self.open = place, open


@dataclass(frozen=True, slots=True)
class EpisodeBudget:
    """The limits of every episode of the run."""

    turns: int
    turn_tokens: int
    tokens: int  # of a trajectory, given and sampled
    tokens_limit: str  # name of that limit for the policy: `tokens` or `context`
    vocabulary: int | None
    trajectories: int = 64
    state_mb: int = MAX_STATE_MB
    history: str = "keep"
    sampled: int = 0  # of all its trajectories; 0: no limit

    @classmethod
    def of(cls, settings: WorkerSettings, vocabulary: int | None) -> "EpisodeBudget":
        """The limits in the configuration."""
        agent, rollout = settings.agent, settings.rollout
        context = rollout.max_prompt_tokens + rollout.max_response_tokens
        return cls(
            turns=agent.max_turns,
            turn_tokens=agent.max_turn_tokens or rollout.max_response_tokens,
            tokens=agent.max_tokens or context,
            tokens_limit="tokens" if agent.max_tokens else "context",
            vocabulary=vocabulary,
            trajectories=agent.max_trajectories,
            state_mb=agent.max_state_mb,
            history=agent.history,
            sampled=agent.max_sampled_tokens,
        )


@dataclass(slots=True)
class _Open:
    """A request that is being sampled."""

    question: Any  # its caller and number
    messages: list[dict[str, Any]] | None  # None: it was token ids
    tools: Any
    reads_calls: bool  # whether tool calls are read from the answer
    most: int  # tokens that the answer may have
    limit: str  # that bounds it, as an ending; "": the agent's own max_tokens
    place: int  # of its turn in the order of asking; -1: not trained


class HostedEpisode:
    """One attempt at one row."""

    def __init__(
        self, begin: Begin, row: bytes, packed: bytes = b"", *, limits: EpisodeBudget,
        renderer: Renderer | None,
    ) -> None:  # fmt: skip
        """`packed`: the saved state to go on from.

        Raises: ValueError if it does not fit, or the row's `chat_template_kwargs` cannot be obeyed.
        """
        self.key: EpisodeKey = (begin.group, begin.episode, begin.trial)
        self.row, self.seed = row, begin.seed
        self.cut_by = ""
        """The limit that cut the last turn, as an ending: `length` is `agent.max_turn_tokens`."""
        self._template_kwargs = json.loads(row).get("chat_template_kwargs") or {}
        self._limits, self._renderer = limits, renderer = limits, self._of_row(renderer)
        self._conversations = Conversations(
            renderer, first=begin.episode, step=begin.episodes, attempt=begin.attempt,
            most=limits.trajectories, history=limits.history,
        )  # fmt: skip
        self._history = CheckedHistory()
        self._asked = self._sampled = 0
        self._turns: list[tuple[int, int]] = []  # trained turns in the order of asking: trajectory, number
        self._answered: set[int] = set()  # places of those that were answered
        self._open: dict[int, _Open] = {}  # by trajectory
        self.state = b""
        """The state that the function goes on from; empty at the start."""
        if begin.restored:
            self._restore(begin, packed)

    def _restore(self, begin: Begin, packed: bytes) -> None:
        try:
            fields, self.state = unpack(packed)
            self._conversations.restore(fields["conversations"])
            self._asked, self._sampled = fields["asked"], fields.get("sampled", 0)  # older states lack these
            self.cut_by = fields.get("cut_by", "")
            self._turns = [(member, number) for member, number in fields["turns"]]
        except (LookupError, TypeError, AttributeError) as error:  # another worker or release has saved it
            raise ValueError(
                f"The state that was saved of the episode cannot be read: {type(error).__name__}: {error}. "
                "It begins again from its start."
            ) from None
        self._answered = {*range(len(self._turns))}  # nothing was open then
        if self._conversations.told() != [tuple(one) for one in begin.restored]:
            raise ValueError(
                f"The state that was saved of the episode is of {self._conversations.told()}; the controller "
                f"expected {[tuple(one) for one in begin.restored]} (asks, tokens, attempt, is trained)."
            )

    def _packed(self, state: bytes) -> bytes:
        """The state from which the episode can go on before the next request. Raises: ValueError."""
        fields = {
            "conversations": self._conversations.fields, "asked": self._asked, "sampled": self._sampled,
            "cut_by": self.cut_by, "turns": self._turns,
        }  # fmt: skip
        packed = pack(fields, state)
        if len(packed) > self._limits.state_mb << 20:
            raise ValueError(too_large(len(packed), self._limits.state_mb))
        return packed

    def ask(self, number: Any, question: Mapping[str, Any]) -> Asked:
        """The question to the controller, and its frames; `number` comes back with the answer.

        Raises: BudgetExceeded; ValueError with a message for the user; SlowRequest if the text is too long
        for the event loop's renderer.
        """
        messages = self._checked(question)
        place = partial(self._place, question, messages)
        opened = partial(self._opened, number, question, messages)
        try:
            placed = place(self._renderer)
        except LongText:
            raise SlowRequest(lambda renderer: place(self._of_row(renderer)), opened) from None
        return opened(placed)

    def _opened(
        self, number: Any, question: Mapping[str, Any], messages: list[dict[str, Any]] | None, placed: Placed
    ) -> Asked:
        """Open the placed request. Raises: BudgetExceeded; ValueError with a message for the user."""
        max_new_tokens, limit = self._budget(placed.length, question.get("max_tokens"))
        self._check_vocabulary(placed.given)
        is_trained = not question.get("is_untrained")
        state = question.get("state")
        saved = b"" if state is None or not self._conversations.is_idle else self._packed(state)
        cause = self._cause(placed, messages, question) if self._asked else ""
        transcript = placed.transcript or self._conversations.begin(is_trained=is_trained)
        keep = len(transcript.tokens)
        transcript.open(placed.given)
        self._asked += 1
        self._open[transcript.member] = _Open(
            number, messages, question.get("tools") or None, question.get("reads_calls", True),
            max_new_tokens, limit, len(self._turns) if is_trained else -1,
        )  # fmt: skip
        if is_trained:
            self._turns.append((transcript.member, transcript.asks - 1))
        frame = np.asarray(placed.given, dtype="<i4").tobytes()
        asked = Ask(
            *self.key, number=transcript.asks - 1, member=transcript.member, attempt=transcript.attempt + 1,
            keep=keep, given=len(placed.given), digest=hashlib.blake2b(frame, digest_size=16).hexdigest(),
            max_new_tokens=max_new_tokens, is_trained=is_trained, saved=len(saved), cause=cause,
        )  # fmt: skip
        return asked, (frame, saved) if saved else (frame,)

    def take(self, turn: Turn, tokens: bytes) -> tuple[Any, dict[str, Any]] | None:
        """The question that the turn answers, and the answer; None if it answers none.

        The answer's `place` is that of its turn in the order of asking; -1: it is not trained. Raises:
        ValueError if the user's renderer could not read it.
        """
        transcript = self._conversations.find(turn.member)
        opened = self._open.get(turn.member)
        if transcript is None or opened is None or turn.number != transcript.asks - 1:
            return None
        del self._open[turn.member]
        sampled = np.frombuffer(tokens, dtype="<i4").tolist()
        transcript.attempt = turn.attempt
        transcript.answered(sampled)
        self._sampled += len(sampled)
        if transcript.is_trained:
            self._answered.add(opened.place)
            self.cut_by = opened.limit if turn.ending == "length" else ""
        if opened.messages is None or self._renderer is None:
            return opened.question, {"sampled": sampled, "ending": turn.ending, "place": opened.place}
        prompt = transcript.tokens[: len(transcript.tokens) - len(sampled)]
        parsed = self._renderer.parse(
            sampled, reads_calls=opened.reads_calls, prompt=prompt, tools=opened.tools
        )
        answer = message_of(parsed, transcript.tokens)
        transcript.held(opened.messages, answer, opened.tools)
        return opened.question, {"message": answer, "ending": turn.ending, "place": opened.place}

    @property
    def turns(self) -> int:
        """Trained turns that were answered."""
        return len(self._answered)

    @property
    def asked(self) -> int:
        """Trained turns that were asked for."""
        return len(self._turns)

    def talk(self) -> bytes:
        """The messages of its first conversation, as JSON; empty if it was held in tokens."""
        first = min((self._turns[place][0] for place in self._answered), default=None)
        transcript = None if first is None else self._conversations.find(first)
        if transcript is None or not transcript.talk:
            return b""
        said = json.dumps([spoken(message) for message in transcript.talk], ensure_ascii=False)
        return said.encode(errors="replace")  # the policy may have written half a character

    def turn_at(self, place: int) -> tuple[int, int]:
        """Trajectory and number of the turn at this place in the order of asking. Raises: IndexError."""
        return self._turns[place]

    def has_answered(self, place: int) -> bool:
        """Whether the turn at this place in the order of asking was answered."""
        return place in self._answered

    def _of_row(self, renderer: Renderer | None) -> Renderer | None:
        """The renderer with this row's `chat_template_kwargs`. Raises: ValueError if it takes none."""
        kwargs = self._template_kwargs
        return renderer.with_template_kwargs(kwargs) if renderer is not None and kwargs else renderer

    def _checked(self, question: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The messages of a request; None if it has token ids. Raises: ValueError if they are invalid."""
        if "chat" not in question:
            return None
        try:
            return self._history.check(question["chat"])
        except RecursionError:
            raise ValueError(TOO_DEEP) from None

    def _place(
        self, question: Mapping[str, Any], messages: list[dict[str, Any]] | None, renderer: Renderer | None
    ) -> Placed:
        """The place of the request; changes nothing. Raises: ValueError for the user; LongText."""
        is_trained = not question.get("is_untrained")
        if messages is None:
            return self._conversations.place_tokens(question.get("tokens") or (), is_trained=is_trained)
        tools = question.get("tools") or None
        try:
            return self._conversations.place(messages, tools, is_trained=is_trained, renderer=renderer)
        except TEMPLATE_ERRORS as error:
            raise ValueError(
                f"The chat template refuses the messages: {type(error).__name__}: {error}."
            ) from None

    def _cause(
        self, placed: Placed, messages: list[dict[str, Any]] | None, question: Mapping[str, Any]
    ) -> ForkCause:
        """Why a request begins another conversation; "" if it does not."""
        if placed.transcript is not None:
            return ""
        return self._conversations.cause(
            messages, placed.given, question.get("tools") or None, is_trained=not question.get("is_untrained")
        )

    def _budget(self, held: int, wanted: int | None) -> tuple[int, str]:
        """The tokens that the next turn may have after `held` tokens, and the limit that bounds them.

        The limit is "" if it is the agent's own max_tokens. Raises: BudgetExceeded.
        """
        limits = self._limits
        if self._asked >= limits.turns:
            raise BudgetExceeded("turns", f"The episode has had its {limits.turns} turns (agent.max_turns).")
        if held >= limits.tokens:
            raise BudgetExceeded(
                limits.tokens_limit,
                f"The conversation has {held} tokens; a trajectory may have {limits.tokens} "
                "(agent.max_tokens).",
            )
        most = {"length": limits.turn_tokens, "": wanted or limits.turn_tokens}
        most[limits.tokens_limit] = limits.tokens - held
        if limits.sampled:
            left = self._left()
            most["tokens"] = min(left, most.get("tokens", left))
        limit = min(most, key=lambda name: most[name])
        return most[limit], limit

    def _left(self) -> int:
        """Tokens that the policy may still sample, besides open requests. Raises: BudgetExceeded."""
        allowed = self._limits.sampled
        promised = sum(opened.most for opened in self._open.values())
        if (left := allowed - self._sampled - promised) < 1:
            more = f", and {len(self._open)} open requests may have {promised} more" if promised else ""
            raise BudgetExceeded(
                "tokens",
                f"The policy has said {self._sampled} tokens in this episode{more}; it may say {allowed} "
                "(agent.max_sampled_tokens).",
            )
        return left

    def _check_vocabulary(self, given: Sequence[int]) -> None:
        size = self._limits.vocabulary
        bad = next((id for id in given if not 0 <= id < (size or 2**31)), None)
        if bad is not None:
            raise ValueError(
                f"The request has the token id {bad}; the model has {size} tokens, from 0. Do tokenizer and "
                "model belong together?"
            )
