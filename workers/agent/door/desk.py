"""The requests of all episodes: which is new, and which is an answer that was lost on its way.

Invariants: a request that is marked as a retry of one that is known is never sampled again; unmarked equal
requests are as many samples; what is kept of an episode goes with it.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from protocol.messages import Turn
from workers.agent.door.chat_request import ChatRequest
from workers.agent.door.completion import DoorAnswer
from workers.agent.door.keys import EpisodeKeys
from workers.agent.door.refusal import DoorRefusal


@dataclass(slots=True, eq=False)
class DoorQuestion:
    """A request whose turn is being sampled, or was."""

    request: ChatRequest
    answer: asyncio.Future[DoorAnswer | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """None: its episode ended first."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    """It is being sampled, or never will be: a text that is long takes a while to be encoded."""
    refusal: DoorRefusal | None = None
    given: int = 0  # tokens of its context
    listeners: int = 0  # clients that wait for it
    is_delivered: bool = False  # to any of them

    def begin(self, given: int) -> None:
        """It is being sampled, behind so many tokens."""
        self.given = given
        self.placed.set()

    def refuse(self, refusal: DoorRefusal) -> None:
        """It is not answered."""
        self.refusal = refusal
        self.placed.set()

    def settle(self, answer: DoorAnswer | None) -> None:
        """Answer it."""
        self.placed.set()
        if not self.answer.done():
            self.answer.set_result(answer)

    def take(
        self, turn: Turn, message: dict[str, Any], frames: tuple[bytes, ...],
        text_of: Callable[[list[int]], str],
    ) -> None:  # fmt: skip
        """Answer it by the turn that was sampled. `frames`: its tokens and their logprobs."""
        tokens = np.frombuffer(frames[0], dtype="<i4").tolist()
        logprobs = None
        if self.request.has_logprobs:
            told = np.frombuffer(frames[1], dtype="<f4").tolist()
            pairs = [(text_of([token]), value) for token, value in zip(tokens, told, strict=True)]
            logprobs = [(text, value) for text, value in pairs if text]
        is_cut = turn.ending == "length"
        self.settle(DoorAnswer(name_of(turn), message, is_cut, self.given, len(tokens), logprobs))


def name_of(turn: Turn) -> str:
    """The id of the completion that answers with this turn."""
    return f"chatcmpl-{turn.group}-{turn.episode}-{turn.trial}-{turn.member}-{turn.number}"


@dataclass(slots=True)
class _Known:
    """What an episode has asked for."""

    by_body: dict[bytes, list[DoorQuestion]] = field(default_factory=lambda: defaultdict(list))
    by_key: dict[str, tuple[bytes, DoorQuestion]] = field(default_factory=dict)


class DoorDesk:
    """Takes requests to the policy."""

    def __init__(self, ask: Callable[[int, DoorQuestion], None]) -> None:
        """`ask`: has a turn sampled for a question of an episode, at once or behind others of the episode.

        It raises DoorRefusal, or gives it to the question later.
        """
        self._ask = ask
        self.keys = EpisodeKeys()
        self._known: dict[int, _Known] = {}

    def open(self, number: int) -> str:
        """Take requests of an episode; its key."""
        self._known[number] = _Known()
        return self.keys.issue(number)

    def close(self, number: int) -> None:
        """The episode is over."""
        self.keys.revoke(number)
        known = self._known.pop(number, _Known())
        for questions in known.by_body.values():
            for question in questions:
                question.settle(None)

    def take(
        self, number: int, body: bytes, request: ChatRequest, *, is_retry: bool, idempotency_key: str
    ) -> DoorQuestion:
        """The question that this request is, or repeats. Raises: DoorRefusal."""
        kind = b"untrained" if request.is_untrained else b""
        known, digest = self._known[number], hashlib.blake2b(kind + body, digest_size=16).digest()
        if idempotency_key in known.by_key:
            of_key, question = known.by_key[idempotency_key]
            if of_key != digest:
                raise DoorRefusal(
                    400, f"The Idempotency-Key {idempotency_key!r:.80} came before with another body. Give "
                    "each request a key of its own.", code="idempotency_error",
                )  # fmt: skip
            return question
        if is_retry and (asked := known.by_body.get(digest)):
            return min(asked, key=lambda question: (question.is_delivered, question.listeners))
        question = DoorQuestion(request)
        self._ask(number, question)
        known.by_body[digest].append(question)
        if idempotency_key:
            known.by_key[idempotency_key] = digest, question
        return question
