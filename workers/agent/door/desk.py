"""The requests of all episodes: tells new requests from retries of a lost answer.

Invariants: a marked retry of a known request is never sampled again; unmarked equal requests are separate
samples; an episode's requests are dropped with it.
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
from workers.agent.door.completion import RESPONSE, DoorAnswer
from workers.agent.door.keys import EpisodeKeys
from workers.agent.door.refusal import DoorRefusal


@dataclass(slots=True, eq=False)
class DoorQuestion:
    """A request whose turn is being sampled, or was."""

    request: ChatRequest
    answer: asyncio.Future[DoorAnswer | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """None: the episode ended first."""
    placed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the request is being sampled, or never will be: long texts take a while to be encoded."""
    refusal: DoorRefusal | None = None
    given: int = 0  # tokens of its context
    listeners: int = 0  # clients that wait for it
    is_delivered: bool = False  # to any of these clients

    def begin(self, given: int) -> None:
        """Note that the request is being sampled, after `given` tokens."""
        self.given = given
        self.placed.set()

    def refuse(self, refusal: DoorRefusal) -> None:
        """Refuse the request."""
        self.refusal = refusal
        self.placed.set()

    def settle(self, answer: DoorAnswer | None) -> None:
        """Set the answer."""
        self.placed.set()
        if not self.answer.done():
            self.answer.set_result(answer)

    def take(
        self, turn: Turn, message: dict[str, Any], frames: tuple[bytes, ...],
        text_of: Callable[[list[int]], str],
    ) -> None:  # fmt: skip
        """Answer with the sampled turn. `frames`: its tokens and their logprobs."""
        tokens = np.frombuffer(frames[0], dtype="<i4").tolist()
        logprobs = None
        if self.request.has_logprobs:
            told = np.frombuffer(frames[1], dtype="<f4").tolist()
            pairs = [(text_of([token]), value) for token, value in zip(tokens, told, strict=True)]
            logprobs = [(text, value) for text, value in pairs if text]
        is_cut = turn.ending == "length"
        self.settle(DoorAnswer(self.name_of(turn), message, is_cut, self.given, len(tokens), logprobs))

    def name_of(self, turn: Turn) -> str:
        """The id of the answer, which is this turn."""
        prefix = "chatcmpl-" if self.request.response is None else RESPONSE
        return f"{prefix}{turn.group}-{turn.episode}-{turn.trial}-{turn.member}-{turn.number}"


@dataclass(slots=True)
class _Known:
    """The requests of an episode."""

    by_body: dict[bytes, list[DoorQuestion]] = field(default_factory=lambda: defaultdict(list))
    by_key: dict[str, tuple[bytes, DoorQuestion]] = field(default_factory=dict)


class DoorDesk:
    """Receives requests to the policies of episodes."""

    def __init__(self, ask: Callable[[int, DoorQuestion], None]) -> None:
        """`ask`: has a turn sampled for an episode's question, at once or after its other questions.

        It raises DoorRefusal, or gives it to the question later.
        """
        self._ask = ask
        self.keys = EpisodeKeys()
        self._known: dict[int, _Known] = {}

    def open(self, number: int) -> str:
        """Accept requests of an episode; returns its key."""
        self._known[number] = _Known()
        return self.keys.issue(number)

    def close(self, number: int) -> None:
        """End an episode's requests."""
        self.keys.revoke(number)
        known = self._known.pop(number, _Known())
        for questions in known.by_body.values():
            for question in questions:
                question.settle(None)

    def take(
        self, number: int, body: bytes, request: ChatRequest, *, is_retry: bool, idempotency_key: str
    ) -> DoorQuestion:
        """The question of this request, which may be an earlier one that it repeats. Raises: DoorRefusal."""
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
