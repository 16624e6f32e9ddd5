"""A checkpoint answers: single responses, and episodes of an agent as a run plays them.

Invariants: prompts are encoded, and episodes are played, by what trains them: the same limits, the same
tokens; environments have the time that they have in a run.
"""

import asyncio
import json
import random
from collections import defaultdict, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from protocol.messages import (
    Ask,
    Begin,
    EndEpisodes,
    EpisodeEnded,
    EpisodeFailed,
    Message,
    Ready,
    Segment,
    Turn,
)
from protocol.settings import WorkerSettings
from workers.agent.worker import AgentHost
from workers.evaluate.engine import LocalEngine
from workers.evaluate.played import Lost, Played
from workers.models.tokenizer import load_tokenizer
from workers.reward.worker import encode_prompt

Key = tuple[int, int, int]
"""(group, episode, trial)."""


class CheckpointResponses:
    """One response to a prompt."""

    def __init__(self, settings: WorkerSettings, directory: str, engine: LocalEngine) -> None:
        self._settings, self._engine = settings, engine
        self._tokenizer = load_tokenizer(directory)

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """Raises: Lost if the row has no prompt that can be used."""
        rollout = self._settings.rollout
        try:
            ids = encode_prompt(self._tokenizer, json.dumps(row).encode(), limit=rollout.max_prompt_tokens)
        except Exception as error:  # chat templates raise whatever they like
            raise Lost(str(error)) from None
        seed = noise(self._settings.seed, number, sample)
        found = await self._engine.generate(ids, rollout.max_response_tokens, seed=seed)
        prompt = self._tokenizer.decode(ids, skip_special_tokens=True)
        text = self._tokenizer.decode(found.tokens, skip_special_tokens=True)
        return Played(
            None, prompt, ids, text, found.tokens, found.ending, len(found.tokens), 1,
            self._tokenizer.decode([*ids, *found.tokens], skip_special_tokens=False),
        )  # fmt: skip


class _Link:
    """What the agent worker takes for its controller."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.ready = asyncio.Event()
        self.heard: dict[Key, asyncio.Queue[tuple[Message, tuple[bytes, ...]]]] = defaultdict(asyncio.Queue)
        self._inbox: deque[tuple[Message, tuple[bytes, ...]]] = deque()

    def receive_nowait(self) -> tuple[Message, tuple[bytes, ...]] | None:
        """The next order."""
        if self._inbox:
            return self._inbox.popleft()
        self.arrived.clear()
        return None

    def wake(self) -> None:
        """Let whoever waits look again."""
        self.arrived.set()

    def tell(self, message: Message, *frames: bytes) -> None:
        """Give an order."""
        self._inbox.append((message, frames))
        self.wake()

    def send(self, message: Message, *frames: bytes) -> None:
        """Hear what the worker says."""
        if isinstance(message, Ready):
            self.ready.set()
        elif isinstance(message, Ask | EpisodeEnded | EpisodeFailed):
            key = (message.group, message.episode, message.trial)
            if key in self.heard:
                self.heard[key].put_nowait((message, frames))


class CheckpointEpisodes:
    """One episode of a row, within `async with`."""

    def __init__(
        self, settings: WorkerSettings, directory: str, engine: LocalEngine, *, samples: int
    ) -> None:
        self._settings, self._engine, self._samples = settings, engine, samples
        self._tokenizer = load_tokenizer(directory)
        self._link, self._host = _Link(), AgentHost(settings, directory)
        self._tasks = asyncio.TaskGroup()
        self._trials = 0

    async def __aenter__(self) -> Self:
        """Raises: ConfigError, in a group, if the agent is no good."""
        await self._tasks.__aenter__()
        self._tasks.create_task(self._host.run(self._link), name="agent")  # type: ignore[arg-type]  # it is all that a worker needs of a link
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.drain()
        await self._tasks.__aexit__(kind, error, trace)

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """Raises: Lost after `agent.retries` tries."""
        await self._link.ready.wait()
        last = ""
        for _ in range(self._settings.agent.retries + 1):
            self._trials += 1
            key = (number, sample, self._trials)
            self._link.heard[key] = asyncio.Queue()
            try:
                return await _Episode(self, key).play(json.dumps(row).encode())
            except Lost as error:
                last = str(error)
            finally:
                self._link.tell(EndEpisodes((key,), "it is over"))
                del self._link.heard[key]
        raise Lost(last)


class _Episode:
    """One trial."""

    def __init__(self, of: CheckpointEpisodes, key: Key) -> None:
        self._of, self._key = of, key
        self._settings, self._link = of._settings, of._link
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._sampled: dict[int, list[int]] = defaultdict(list)
        self._first = 0  # given tokens of the first trajectory, before its first turn
        self._said: dict[int, list[str]] = defaultdict(list)
        self._turns = 0
        self._answering: set[asyncio.Task[None]] = set()

    async def play(self, row: bytes) -> Played:
        """Raises: Lost."""
        group, episode, trial = self._key
        agent, of = self._settings.agent, self._of
        seed = environment_seed(self._settings.seed, group)
        self._link.tell(Begin(group, episode, trial, seed, 0, of._samples), row)
        limit_s, heard = agent.start_timeout_s, self._link.heard[self._key]
        try:
            while True:
                message, frames = await self._next(heard, limit_s)
                limit_s = agent.turn_timeout_s
                if isinstance(message, Ask):
                    task = asyncio.create_task(self._answer(message, frames[0]), name="a turn")
                    self._answering.add(task)
                elif isinstance(message, EpisodeFailed):
                    raise Lost(message.reason)
                elif isinstance(message, EpisodeEnded):
                    return self._played(message)
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def _next(
        self, heard: "asyncio.Queue[tuple[Message, tuple[bytes, ...]]]", limit_s: float
    ) -> tuple[Message, tuple[bytes, ...]]:
        """What the environment says next; time counts while no turn is being sampled. Raises: Lost."""
        hearing = asyncio.ensure_future(heard.get())
        try:
            while not hearing.done():
                waits = {hearing, *self._answering}
                timeout = None if self._answering else limit_s
                done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise Lost(f"Its environment was silent for {limit_s:g} s.")
                for task in done & self._answering:
                    self._answering.discard(task)
                    await task
            return hearing.result()
        finally:
            hearing.cancel()

    async def _answer(self, ask: Ask, given: bytes) -> None:
        """Raises: ValueError if the engine cannot take the tokens."""
        tokens = self._tokens[ask.member]
        tokens += np.frombuffer(given, dtype="<i4").tolist()
        if not self._sampled:
            self._first = len(tokens)
        seed = noise(self._settings.seed, *self._key, ask.member, ask.number)
        found = await self._of._engine.generate(tokens, ask.max_new_tokens, seed=seed)
        tokens += found.tokens
        if ask.is_trained:
            self._sampled[ask.member] += found.tokens
        self._said[ask.member].append(self._of._tokenizer.decode(found.tokens, skip_special_tokens=True))
        self._turns += 1
        attempt = ask.attempt + 1
        segments = (Segment(attempt, 0, len(found.tokens)),)
        turn = Turn(*self._key, ask.number, ask.member, attempt, found.ending, segments)
        logprobs = np.asarray(found.logprobs, dtype="<f4").tobytes()
        self._link.tell(turn, np.asarray(found.tokens, dtype="<i4").tobytes(), logprobs)

    def _played(self, end: EpisodeEnded) -> Played:
        decode = self._of._tokenizer.decode
        first = min(self._sampled)
        whole = self._tokens[first]
        prompt, said = whole[: self._first], whole[self._first :]
        texts = [decode(tokens, skip_special_tokens=False) for _, tokens in sorted(self._tokens.items())]
        limit = self._settings.agent.on_limit
        reward = end.reward[0] if end.reward else None
        return Played(
            0.0 if end.ending != "stop" and limit == "zero" else reward,
            decode(prompt, skip_special_tokens=True), prompt,
            decode(said, skip_special_tokens=True), said,
            "stop" if end.ending == "stop" else "length",
            sum(map(len, self._sampled.values())), self._turns, texts if len(texts) > 1 else texts[0],
            self._said[first],
        )  # fmt: skip


def environment_seed(seed: int, row: int) -> int:
    """The seed of a held-out row's environments, as a run's evaluation gives it."""
    return random.Random(f"{seed}/environment/evaluation/{row}").getrandbits(52)


def noise(seed: int, *place: int) -> int:
    """The seed of what is sampled at this place."""
    return random.Random(f"{seed}/evaluate/{'/'.join(map(str, place))}").getrandbits(52)
