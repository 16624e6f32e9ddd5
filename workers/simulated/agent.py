"""A simulated agent worker: its environments take time, fail, hang, or diverge when they are replayed.

Invariants: an episode's requests are a function of the seed of its group, its number and its trial, unless it
diverges; its environment's times are a function of the worker's seed, the episode and the request, so equal
seeds wait equally under all strategies; hangs and failures are drawn again each time; it sends nothing about
an episode that was ended, and has one open request per trajectory.
"""

import random
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from math import exp
from typing import NamedTuple, cast

from protocol import messages
from protocol.messages import Ask, EpisodeEnded, EpisodeEnding, EpisodeFailed, Message, ToAgent, ToAnyRole
from workers.simulated.link import taken_by_link

Key = tuple[int, int, int]
"""(group, episode, trial)."""
UNTRAINED = 0.25  # share of forks


class Environment(NamedTuple):
    """The behaviour of environments; fields as in `simulation.environment`."""

    turns: int
    turns_sigma: float
    given_tokens: int
    wait_s: float
    sigma: float
    start_s: float
    failure_rate: float
    hang_rate: float
    divergence_rate: float
    fork_rate: float
    saved_bytes: int
    first_tokens: int  # of the first request


class EpisodeLimits(NamedTuple):
    """The limits of an episode's requests."""

    turns: int
    turn_tokens: int
    tokens: int
    trajectories: int
    sampled: int = 0  # of all its trajectories; 0: no limit


@dataclass(slots=True)
class _Asked:
    """A trajectory."""

    member: int
    attempt: int
    is_trained: bool = True
    number: int = 0  # of its next ask
    length: int = 0
    most: int = 0  # tokens that its newest turn may have
    is_open: bool = False


@dataclass(slots=True)
class _Running:
    begin: messages.Begin
    wanted: int
    most: int
    is_diverging: bool
    asked: int = 0  # in all its trajectories
    sampled: int = 0  # tokens, in all of them
    is_spent: bool = False  # whether the episode's limit of sampled tokens is reached
    trajectories: list[_Asked] = field(default_factory=list)

    def fork(self, *, is_trained: bool) -> _Asked:
        begin = self.begin
        member = begin.episode + len(self.trajectories) * begin.episodes
        self.trajectories.append(_Asked(member, begin.attempt, is_trained))
        return self.trajectories[-1]

    @property
    def turns(self) -> int:
        """The number of turns that it may have."""
        return min(self.wanted, self.most)

    @property
    def ending(self) -> EpisodeEnding:
        """The ending of an episode that does not go on."""
        if self.asked < self.turns:
            return "tokens" if self.is_spent else "context"
        return "stop" if self.asked >= self.wanted else "turns"

    @property
    def is_open(self) -> bool:
        return any(one.is_open for one in self.trajectories)


class SimulatedAgent:
    """Answers Begin and Turn as an agent worker does."""

    def __init__(
        self, environment: Environment, limits: EpisodeLimits, *, seed: int, at_once: int, attach_s: float,
        now: float = 0.0,
    ) -> None:  # fmt: skip
        self._environment, self._limits = environment, limits
        self._seed, self._rng = seed, random.Random(seed)
        self._running: dict[Key, _Running] = {}
        ready = messages.Ready(0, at_once, 0)
        self._due: list[tuple[float, int, Key | None, Message | None]] = [(now + attach_s, 0, None, ready)]
        self._count = 0

    def next_wake_s(self) -> float | None:
        """The time of the next message of an environment."""
        return self._due[0][0] if self._due else None

    def takes_s(self, key: Key, asked: int, median_s: float) -> float:
        """Seconds that an episode's environment takes after `asked` requests."""
        own = random.Random(f"{self._seed}/{key}/{asked}")
        return median_s * exp(own.gauss(0, self._environment.sigma))

    def handle(self, now: float, command: Message) -> list[Message]:
        """Handle one command; returns the immediate messages."""
        order = cast("ToAgent | ToAnyRole", command)
        match order:
            case messages.Begin():
                self._begin(now, order)
            case messages.Turn(group, episode, trial, _, member, attempt, _, segments):
                running = self._running[group, episode, trial]
                found = running.trajectories[member // running.begin.episodes]
                count = sum(segment.count for segment in segments)
                found.length += count
                running.sampled += count
                found.attempt, found.is_open = attempt, False
                if not running.is_open:
                    self._wait(now, (group, episode, trial), self._environment.wait_s)
            case messages.EndEpisodes(episodes):
                for key in episodes:
                    self._running.pop(key, None)
            case _:
                taken_by_link(order)
        return []

    def wake(self, now: float) -> list[Message]:
        """The messages of environments that are due by now."""
        out: list[Message] = []
        while self._due and self._due[0][0] <= now:
            _, _, key, message = heappop(self._due)
            if key is None:
                assert message is not None
                out.append(message)
            elif key in self._running:
                out += self._speak(key)
        return out

    def _begin(self, now: float, begin: messages.Begin) -> None:
        key = (begin.group, begin.episode, begin.trial)
        rng = random.Random(f"{begin.seed}/{begin.episode}/{begin.trial}")
        turns = max(1, round(self._environment.turns * exp(rng.gauss(0, self._environment.turns_sigma))))
        is_diverging = rng.random() < self._environment.divergence_rate
        running = self._running[key] = _Running(begin, turns, self._limits.turns, is_diverging)
        for place, one in enumerate(begin.restored):
            member = begin.episode + place * begin.episodes
            running.trajectories.append(_Asked(member, one.attempt, one.is_trained, one.asks, one.length))
            running.asked += one.asks
        self._wait(now, key, self._environment.start_s)

    def _wait(self, now: float, key: Key, median_s: float) -> None:
        """Schedule the next message of an episode's environment, or none if it hangs."""
        if self._rng.random() < self._environment.hang_rate:
            return
        self._count += 1
        seconds = self.takes_s(key, self._running[key].asked, median_s)
        heappush(self._due, (now + seconds, self._count, key, None))

    def _speak(self, key: Key) -> list[Message]:
        """The next message of an episode, or several at once in as many trajectories."""
        found = self._running[key]
        if self._rng.random() < self._environment.failure_rate:
            del self._running[key]
            return [EpisodeFailed(*key, "environment", "The simulated environment failed.", "{}")]
        said: list[Message] = []
        while True:
            salt = self._rng.random() if found.is_diverging else 0.0
            rng = random.Random(f"{found.begin.seed}/{key[1]}/{key[2]}/{found.asked}/{salt}")
            drawn = self._environment.given_tokens * exp(rng.gauss(0, self._environment.sigma))
            given = max(1, round(drawn)) if found.asked else self._environment.first_tokens
            trajectory = self._choose(found, rng)
            room = 0 if trajectory is None else self._room(found, trajectory, given)
            if trajectory is None or found.asked >= found.turns or (found.asked and room < 1):
                if trajectory is not None and not trajectory.length:
                    found.trajectories.remove(trajectory)  # there is no room to begin it
                if not found.is_open:
                    del self._running[key]
                    rewards = ((key[1], 0, rng.random()),)
                    end = EpisodeEnded(
                        *key, found.ending, (rng.random(),), turn_rewards=rewards, earned="end"
                    )
                    said.append(end)
                return said
            digest = blake2b(f"{key}/{found.asked}/{given}/{salt}".encode(), digest_size=16).hexdigest()
            said.append(self._ask(key, found, trajectory, given, digest))
            if not self._environment.fork_rate or rng.random() >= self._environment.fork_rate:
                return said

    def _choose(self, found: _Running, rng: random.Random) -> _Asked | None:
        """The trajectory that continues, or a fork; None if there is none."""
        closed = [one for one in found.trajectories if not one.is_open]
        is_fork = self._environment.fork_rate > 0 and rng.random() < self._environment.fork_rate
        if len(found.trajectories) < self._limits.trajectories and (is_fork or not closed):
            is_trained = not found.trajectories or rng.random() >= UNTRAINED
            return found.fork(is_trained=is_trained) if found.asked < found.turns else None
        return rng.choice(closed) if len(closed) > 1 else next(iter(closed), None)

    def _room(self, found: _Running, one: _Asked, given: int) -> int:
        """Tokens that the next turn may have after the given ones."""
        room = min(self._limits.tokens - one.length - given, self._limits.turn_tokens)
        if not self._limits.sampled:
            return room
        promised = sum(other.most for other in found.trajectories if other.is_open)
        left = self._limits.sampled - found.sampled - promised
        found.is_spent = left < 1
        return min(left, room)

    def _ask(self, key: Key, found: _Running, one: _Asked, given: int, digest: str) -> Ask:
        one.most = self._room(found, one, given)
        saved = 0 if found.is_open else self._environment.saved_bytes
        ask = Ask(
            *key, one.number, one.member, one.attempt + 1, one.length, given, digest, one.most,
            one.is_trained, saved,
        )  # fmt: skip
        one.number, one.length, one.is_open = one.number + 1, one.length + given, True
        found.asked += 1
        return ask
