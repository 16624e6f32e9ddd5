"""One episode as the worker sees it: its conversation, its limits, and what has to be answered.

Invariants: no I/O; what the user's process asks is checked here before anything is sent for it; a limit is
told before a token is sampled beyond it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError

from protocol.messages import Ask, Begin, Turn
from protocol.settings import WorkerSettings
from workers.agent.messages import check_messages
from workers.agent.policy import BudgetExceeded
from workers.agent.renderer import Renderer, message_of
from workers.agent.transcript import Transcript

EpisodeKey = tuple[int, int, int]
"""(group, episode, trial), as messages name it."""


@dataclass(frozen=True, slots=True)
class EpisodeBudget:
    """Of every episode of the run."""

    turns: int
    turn_tokens: int
    tokens: int  # of its trajectory, given and sampled
    tokens_limit: str  # what the policy is told that this is: `tokens`, or the `context`
    vocabulary: int | None

    @classmethod
    def of(cls, settings: WorkerSettings, vocabulary: int | None) -> "EpisodeBudget":
        """Those of the configuration."""
        agent, rollout = settings.agent, settings.rollout
        context = rollout.max_prompt_tokens + rollout.max_response_tokens
        return cls(
            turns=agent.max_turns,
            turn_tokens=agent.max_turn_tokens or rollout.max_response_tokens,
            tokens=agent.max_tokens or context,
            tokens_limit="tokens" if agent.max_tokens else "context",
            vocabulary=vocabulary,
        )


@dataclass(slots=True)
class _Open:
    """The request that is being sampled."""

    question: Any  # whose it is, and which
    messages: list[dict[str, Any]] | None  # None: it was token ids
    tools: Any
    reads_calls: bool  # in what the policy says


class HostedEpisode:
    """One attempt at one row."""

    def __init__(self, begin: Begin, row: bytes, *, limits: EpisodeBudget, renderer: Renderer | None) -> None:
        self.key: EpisodeKey = (begin.group, begin.episode, begin.trial)
        self.row, self.seed = row, begin.seed
        self.is_cut = False
        """Whether the last turn was cut at `agent.max_turn_tokens`."""
        self._limits, self._renderer = limits, renderer
        self._transcript = Transcript(renderer)
        self._attempt = begin.attempt
        self._asked = self._answered = 0
        self._open: _Open | None = None

    def ask(self, number: Any, question: Mapping[str, Any]) -> tuple[Ask, bytes]:
        """What is to be asked of the controller; `number` comes back with the answer.

        Raises: BudgetExceeded, or ValueError in words.
        """
        tools = messages = None
        if "chat" in question:
            tools, messages = question.get("tools") or None, check_messages(question["chat"])
            try:
                given = self._transcript.place(messages, tools)
            except (TemplateError, TypeError, KeyError) as error:
                raise ValueError(
                    f"The chat template refuses the messages: {type(error).__name__}: {error}."
                ) from None
        else:
            given = self._transcript.place_tokens(question["tokens"])
        self._check_vocabulary(given)
        max_new_tokens = self._budget(len(given), question.get("max_tokens"))
        keep = len(self._transcript.tokens)
        self._transcript.open(given)
        self._open = _Open(number, messages, tools, question.get("reads_calls", True))
        frame = np.asarray(given, dtype="<i4").tobytes()
        group, episode, trial = self.key
        asked = Ask(
            group, episode, trial, number=self._asked, member=episode, attempt=self._attempt + 1, keep=keep,
            given=len(given), digest=hashlib.blake2b(frame, digest_size=16).hexdigest(),
            max_new_tokens=max_new_tokens,
        )  # fmt: skip
        self._asked += 1
        self._cut_at = max_new_tokens == self._limits.turn_tokens
        return asked, frame

    def take(self, turn: Turn, tokens: bytes) -> tuple[Any, dict[str, Any]] | None:
        """The question that the turn answers, and the answer; None if it answers none."""
        if self._open is None or turn.number != self._asked - 1:
            return None
        opened, self._open = self._open, None
        sampled = np.frombuffer(tokens, dtype="<i4").tolist()
        self._attempt = turn.attempt
        self._answered += 1
        self._transcript.answered(sampled)
        self.is_cut = turn.ending == "length" and self._cut_at
        if opened.messages is None or self._renderer is None:
            return opened.question, {"sampled": sampled, "ending": turn.ending}
        parsed = self._renderer.parse(sampled, reads_calls=opened.reads_calls)
        answer = message_of(parsed, self._transcript.tokens)
        self._transcript.held(opened.messages, answer, opened.tools)
        return opened.question, {"message": answer, "ending": turn.ending}

    @property
    def turns(self) -> int:
        """Answers of the policy so far."""
        return self._answered

    def _budget(self, given: int, wanted: int | None) -> int:
        """Tokens that the next turn may have. Raises: BudgetExceeded."""
        limits, held = self._limits, len(self._transcript.tokens) + given
        if self._asked >= limits.turns:
            raise BudgetExceeded("turns", f"The episode has had its {limits.turns} turns (agent.max_turns).")
        if held >= limits.tokens:
            raise BudgetExceeded(
                limits.tokens_limit,
                f"The conversation has {held} tokens; a trajectory may have {limits.tokens} "
                "(agent.max_tokens).",
            )
        return min(limits.turn_tokens, limits.tokens - held, wanted or limits.turn_tokens)

    def _check_vocabulary(self, given: Sequence[int]) -> None:
        size = self._limits.vocabulary
        bad = next((id for id in given if not 0 <= id < (size or 2**31)), None)
        if bad is not None:
            raise ValueError(
                f"The request has the token id {bad}; the model has {size} tokens, from 0. Do tokenizer and "
                "model belong together?"
            )
