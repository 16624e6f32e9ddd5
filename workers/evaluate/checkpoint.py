"""Evaluates a checkpoint: single responses, and episodes of an agent as in a run.

Invariants: prompts are encoded, and episodes are played, by the code that training uses: the same limits, the
same tokens; environments have the same time limits as in a run.
"""

import asyncio
import json
import random
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from protocol.agents.settings import AgentSettings
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
from protocol.messages.pieces import ForkCause
from protocol.settings import WorkerSettings
from workers.agent.worker import AgentHost
from workers.evaluate.engine import LocalEngine
from workers.evaluate.played import Lost, Played
from workers.models.tokenizer import load_tokenizer
from workers.reward.worker import encode_prompt

Key = tuple[int, int, int]
"""(group, episode, trial)."""


class CheckpointResponses:
    """Plays single responses to prompts."""

    def __init__(self, settings: WorkerSettings, directory: str, engine: LocalEngine) -> None:
        self._settings, self._engine = settings, engine
        self._tokenizer = load_tokenizer(directory)

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """One response. Raises: Lost if the row has no valid prompt, or one that the engine refuses."""
        rollout = self._settings.rollout
        try:
            ids = encode_prompt(self._tokenizer, json.dumps(row).encode(), limit=rollout.max_prompt_tokens)
        except Exception as error:  # chat templates raise whatever they like
            raise Lost(str(error)) from None
        seed = noise(self._settings.seed, number, sample)
        try:
            found = await self._engine.generate(ids, rollout.max_response_tokens, seed=seed)
        except ValueError as error:
            raise Lost(str(error)) from None
        prompt = self._tokenizer.decode(ids, skip_special_tokens=True)
        text = self._tokenizer.decode(found.tokens, skip_special_tokens=True)
        return Played(
            None, prompt, ids, text, found.tokens, found.ending, len(found.tokens), 1,
            self._tokenizer.decode([*ids, *found.tokens], skip_special_tokens=False),
        )  # fmt: skip


class _Link:
    """Stands in for the agent worker's link to its controller."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.ready = asyncio.Event()
        self.heard: dict[Key, asyncio.Queue[tuple[Message, tuple[bytes, ...]]]] = defaultdict(asyncio.Queue)
        self._inbox: deque[tuple[Message, tuple[bytes, ...]]] = deque()

    def receive_nowait(self) -> tuple[Message, tuple[bytes, ...]] | None:
        """The next order for the worker."""
        if self._inbox:
            return self._inbox.popleft()
        self.arrived.clear()
        return None

    def wake(self) -> None:
        """Wake the worker."""
        self.arrived.set()

    def tell(self, message: Message, *frames: bytes) -> None:
        """Send the worker an order."""
        self._inbox.append((message, frames))
        self.wake()

    def send(self, message: Message, *frames: bytes) -> None:
        """Receive a message of the worker."""
        if isinstance(message, Ready):
            self.ready.set()
        elif isinstance(message, Ask | EpisodeEnded | EpisodeFailed):
            key = (message.group, message.episode, message.trial)
            if key in self.heard:
                self.heard[key].put_nowait((message, frames))


class CheckpointEpisodes:
    """Plays episodes of rows, within `async with`."""

    def __init__(
        self, settings: WorkerSettings, directory: str, engine: LocalEngine, *, samples: int
    ) -> None:
        self._settings, self._engine, self._samples = settings, engine, samples
        self._tokenizer = load_tokenizer(directory)
        self._link, self._host = _Link(), AgentHost(settings, directory)
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        """Raises: ConfigError, in a group, if the agent cannot be loaded."""
        await self._tasks.__aenter__()
        self._tasks.create_task(self._host.run(self._link), name="agent")  # type: ignore[arg-type]  # it is all that a worker needs of a link
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.drain()
        await self._tasks.__aexit__(kind, error, trace)

    async def play(self, number: int, sample: int, row: Mapping[str, Any]) -> Played:
        """One episode. Raises: Lost after `agent.retries` retries."""
        await self._link.ready.wait()
        last = ""
        for trial in range(1, self._settings.agent.retries + 2):
            key = (number, sample, trial)
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
    """One trial of an episode."""

    def __init__(self, of: CheckpointEpisodes, key: Key) -> None:
        self._of, self._key = of, key
        self._settings, self._link = of._settings, of._link
        self._tokens: dict[int, list[int]] = defaultdict(list)
        self._sampled: dict[int, list[int]] = defaultdict(list)
        self._prompts: dict[int, int] = {}  # given tokens of each trajectory, before its first turn
        self._own_s = 0.0  # seconds that its environment took
        self._said: dict[int, list[str]] = defaultdict(list)
        self._last: dict[int, list[int]] = {}  # the newest answer per trajectory
        self._has_asked = False  # its start is over
        self._took_s: dict[tuple[int, int], float] = {}  # from each ask until its turn was sent
        self._forks: list[ForkCause] = []
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
                    self._has_asked = True
                    task = asyncio.create_task(self._time(message, frames[0]), name="a turn")
                    self._answering.add(task)
                elif isinstance(message, EpisodeFailed):
                    raise Lost(message.reason)
                elif isinstance(message, EpisodeEnded):
                    reward = worth(agent, message.ending, message.reward[0] if message.reward else None)
                    talk = json.loads(frames[0]) if frames else None
                    played = self._played("stop" if message.ending == "stop" else "length", reward, talk)
                    return played._replace(overhead_ms=self._overhead_ms(message))
        except _Silent as silent:
            if agent.on_timeout == "score" and self._sampled:
                return self._played("length", 0.0)
            raise Lost(str(silent)) from None
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def _next(
        self, heard: "asyncio.Queue[tuple[Message, tuple[bytes, ...]]]", limit_s: float
    ) -> tuple[Message, tuple[bytes, ...]]:
        """The worker's next message; its time counts while no turn is being sampled. Raises: _Silent."""
        hearing, clock = asyncio.ensure_future(heard.get()), asyncio.get_running_loop().time
        try:
            while not hearing.done():
                is_alone, began = not self._answering, clock()
                rest_s = self._settings.agent.episode_timeout_s - self._own_s
                left_s = min(limit_s, rest_s) if self._has_asked else limit_s  # as in a run
                done, _ = await asyncio.wait(
                    {hearing, *self._answering},
                    timeout=max(0.0, left_s) if is_alone else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                self._own_s += clock() - began if is_alone else 0.0
                if not done:
                    key = "episode" if left_s < limit_s else "turn" if self._has_asked else "start"
                    raise _Silent(f"Its environment was silent for {left_s:.1f} s (agent.{key}_timeout_s).")
                for task in done & self._answering:
                    self._answering.discard(task)
                    await task
            return hearing.result()
        finally:
            hearing.cancel()

    async def _time(self, ask: Ask, given: bytes) -> None:
        """Answer an ask, and note how long that took. Raises: as `_answer`."""
        began = time.monotonic()
        await self._answer(ask, given)
        self._took_s[ask.member, ask.number] = time.monotonic() - began

    def _overhead_ms(self, ended: EpisodeEnded) -> tuple[float, ...]:
        """The worker's time per turn, besides the engine's."""
        return tuple(
            max(0.0, waited_ms - 1000 * took_s)
            for member, number, waited_ms in ended.awaited
            if (took_s := self._took_s.get((member, number))) is not None
        )

    async def _answer(self, ask: Ask, given: bytes) -> None:
        """Sample and send a turn. Raises: Lost if the engine refuses the tokens."""
        tokens = self._tokens[ask.member]
        tokens += np.frombuffer(given, dtype="<i4").tolist()
        self._prompts.setdefault(ask.member, len(tokens))
        seed = noise(self._settings.seed, *self._key, ask.member, ask.number)
        try:
            found = await self._of._engine.generate(tokens, ask.max_new_tokens, seed=seed)
        except ValueError as error:
            raise Lost(str(error)) from None
        tokens += found.tokens
        if ask.is_trained and ask.cause:
            self._forks.append(ask.cause)
        if ask.is_trained:
            self._sampled[ask.member] += found.tokens
        self._said[ask.member].append(self._of._tokenizer.decode(found.tokens, skip_special_tokens=True))
        self._last[ask.member] = found.tokens
        attempt = ask.attempt + 1
        segments = (Segment(attempt, 0, len(found.tokens)),)
        turn = Turn(*self._key, ask.number, ask.member, attempt, found.ending, segments)
        logprobs = np.asarray(found.logprobs, dtype="<f4").tobytes()
        self._link.tell(turn, np.asarray(found.tokens, dtype="<i4").tobytes(), logprobs)

    def _played(self, ending: str, reward: float | None, talk: list[Any] | None = None) -> Played:
        decode = self._of._tokenizer.decode
        first = min(self._sampled)
        prompt = self._tokens[first][: self._prompts[first]]
        texts = [decode(tokens, skip_special_tokens=False) for _, tokens in sorted(self._tokens.items())]
        return Played(
            reward,
            decode(prompt, skip_special_tokens=True), prompt,
            self._said[first][-1], self._last[first],
            ending,
            sum(map(len, self._sampled.values())), sum(len(self._said[member]) for member in self._sampled),
            texts if len(texts) > 1 else texts[0],
            talk, self._said[first], tuple(self._forks),
        )  # fmt: skip


class _Silent(Exception):
    """The environment exceeded a time limit; the text says which."""


def worth(agent: AgentSettings, ending: str, reward: float | None) -> float | None:
    """The reward of an episode with this ending, as in a run's evaluation.

    All episodes count there, so one that `agent.on_limit: mask` leaves out of training gets 0.
    """
    return reward if ending == "stop" or agent.on_limit == "score" else 0.0


def environment_seed(seed: int, row: int) -> int:
    """The seed of a held-out row's environments, as a run's evaluation gives it."""
    return random.Random(f"{seed}/environment/evaluation/{row}").getrandbits(52)


def noise(seed: int, *place: int) -> int:
    """The sampling seed of this place."""
    return random.Random(f"{seed}/evaluate/{'/'.join(map(str, place))}").getrandbits(52)
