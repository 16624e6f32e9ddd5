"""A simulated agent worker: episodes whose environments take their time, fail, hang, or ask something else.

Invariants: what an episode asks is a function of the seed of its group, its number and its trial, unless it
is one that diverges; how long its environment takes is drawn anew each time; it speaks of no episode that was
called off, and asks one thing at a time.
"""

import random
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from math import exp
from typing import NamedTuple, cast

from protocol import messages
from protocol.messages import Ask, EpisodeEnded, EpisodeEnding, EpisodeFailed, Message, ToAgent, ToAnyRole
from workers.simulated.link import taken_by_link

Key = tuple[int, int, int]
"""(group, episode, trial)."""


class Environment(NamedTuple):
    """What environments do; fields as in `simulation.environment`."""

    turns: int
    turns_sigma: float
    given_tokens: int
    wait_s: float
    sigma: float
    start_s: float
    failure_rate: float
    hang_rate: float
    divergence_rate: float
    first_tokens: int  # of the first request


class EpisodeLimits(NamedTuple):
    """What an episode may ask for."""

    turns: int
    turn_tokens: int
    tokens: int


@dataclass(slots=True)
class _Running:
    seed: int
    turns: int
    attempt: int
    is_diverging: bool
    number: int = 0  # of the next ask
    length: int = 0  # of its trajectory


class SimulatedAgent:
    """Answers Begin and Turn as an agent worker does."""

    def __init__(
        self, environment: Environment, limits: EpisodeLimits, *, seed: int, at_once: int, attach_s: float,
        now: float = 0.0,
    ) -> None:  # fmt: skip
        self._environment, self._limits = environment, limits
        self._rng = random.Random(seed)
        self._running: dict[Key, _Running] = {}
        ready = messages.Ready(0, at_once, 0)
        self._due: list[tuple[float, int, Key | None, Message | None]] = [(now + attach_s, 0, None, ready)]
        self._count = 0

    def next_wake_s(self) -> float | None:
        """When an environment has something to say."""
        return self._due[0][0] if self._due else None

    def handle(self, now: float, command: Message) -> list[Message]:
        """Take one command; returns what is said at once."""
        order = cast("ToAgent | ToAnyRole", command)
        match order:
            case messages.Begin():
                self._begin(now, order)
            case messages.Turn(group, episode, trial, _, _, attempt, _, segments):
                found = self._running[group, episode, trial]
                found.length += sum(segment.count for segment in segments)
                found.attempt = attempt
                self._wait(now, (group, episode, trial), self._environment.wait_s)
            case messages.EndEpisodes(episodes):
                for key in episodes:
                    self._running.pop(key, None)
            case _:
                taken_by_link(order)
        return []

    def wake(self, now: float) -> list[Message]:
        """What environments say by now."""
        out: list[Message] = []
        while self._due and self._due[0][0] <= now:
            _, _, key, message = heappop(self._due)
            if key is None:
                assert message is not None
                out.append(message)
            elif key in self._running:
                out.append(self._speak(key))
        return out

    def _begin(self, now: float, begin: messages.Begin) -> None:
        key = (begin.group, begin.episode, begin.trial)
        rng = random.Random(f"{begin.seed}/{begin.episode}/{begin.trial}")
        turns = max(1, round(self._environment.turns * exp(rng.gauss(0, self._environment.turns_sigma))))
        is_diverging = rng.random() < self._environment.divergence_rate
        most = min(turns, self._limits.turns)
        self._running[key] = _Running(begin.seed, most, begin.attempt, is_diverging)
        self._wait(now, key, self._environment.start_s)

    def _wait(self, now: float, key: Key, median_s: float) -> None:
        """Let its environment speak after a while, or never."""
        if self._rng.random() < self._environment.hang_rate:
            return
        self._count += 1
        seconds = median_s * exp(self._rng.gauss(0, self._environment.sigma))
        heappush(self._due, (now + seconds, self._count, key, None))

    def _speak(self, key: Key) -> Message:
        found = self._running[key]
        if self._rng.random() < self._environment.failure_rate:
            del self._running[key]
            return EpisodeFailed(*key, "environment", "The simulated environment failed.", "{}")
        salt = self._rng.random() if found.is_diverging else 0.0
        rng = random.Random(f"{found.seed}/{key[1]}/{key[2]}/{found.number}/{salt}")
        drawn = self._environment.given_tokens * exp(rng.gauss(0, self._environment.sigma))
        given = max(1, round(drawn)) if found.number else self._environment.first_tokens
        room = self._limits.tokens - found.length - given
        if found.number >= found.turns or (found.number and room < 1):
            del self._running[key]
            ending: EpisodeEnding = "stop" if found.number >= found.turns else "context"
            return EpisodeEnded(*key, ending, (rng.random(),), turn_rewards=((0, rng.random()),))
        digest = blake2b(f"{key}/{found.number}/{given}/{salt}".encode(), digest_size=16).hexdigest()
        most = min(room, self._limits.turn_tokens)
        ask = Ask(*key, found.number, key[1], found.attempt + 1, found.length, given, digest, most)
        found.number += 1
        found.length += given
        return ask
