"""Orders of an agent worker about episodes, and which of its messages contradict them.

Invariants: an honest worker is never refused, however late its messages come: it may speak of an ended
episode until it has got the order that ended it; it numbers the trajectories of an episode as it begins them,
continues each at its end, and has one open ask at a time in each, within the limits of the configuration.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import NamedTuple

from controller.config.models import Config
from controller.core.state.told import Told
from protocol.messages import (
    MAX_REWARD,
    Ask,
    Begin,
    EndEpisodes,
    EpisodeEnded,
    EpisodeFailed,
    Message,
    Turn,
)

MAX_NAMES = 64  # of rewards, or of metrics, of one episode; each is written to metrics.jsonl
Key = tuple[int, int, int]
"""(group, episode, trial)."""


class AskLimits(NamedTuple):
    """Limits for the asks of an episode."""

    turns: int
    turn_tokens: int
    tokens: int  # of a trajectory
    trajectories: int
    state_bytes: int
    sampled: int = 0  # of all its trajectories; 0: as many as they hold

    @classmethod
    def of(cls, config: Config) -> "AskLimits":
        """The limits of a configuration."""
        agent, rollout = config.agent, config.rollout
        return cls(
            agent.max_turns,
            agent.max_turn_tokens or rollout.max_response_tokens,
            agent.max_tokens or rollout.max_prompt_tokens + rollout.max_response_tokens,
            agent.max_trajectories,
            agent.max_state_mb << 20,
            agent.max_sampled_tokens,
        )


@dataclass(slots=True)
class AskedTrajectory:
    """A trajectory that the worker has begun, as far as it knows."""

    order: int  # number of the order with its last turn, or of the Begin of its episode
    attempt: int  # newest attempt
    is_trained: bool = True
    asks: int = 0
    turns: int = 0  # asks that were answered
    length: int = 0  # in tokens
    most: int = 0  # limit of the turn that it asked for last
    sampled: int = 0  # tokens of its turns, each up to its limit

    @property
    def is_open(self) -> bool:
        """Whether an ask is unanswered."""
        return self.asks > self.turns


@dataclass(slots=True)
class Begun:
    """An episode that the worker was told to begin."""

    order: int  # number of the last order that the worker has certainly got
    attempt: int  # attempt before the first one of each trajectory
    episodes: int  # number of episodes of its group
    trajectories: dict[int, AskedTrajectory] = field(default_factory=dict)

    @property
    def asks(self) -> int:
        """Number of asks in all its trajectories."""
        return sum(one.asks for one in self.trajectories.values())

    @property
    def promised(self) -> int:
        """Tokens sampled for it since it was begun last, with the limits of its open asks.

        A repeated turn may exceed the limit of its ask, if several asks came in another order than before;
        it counts up to that limit, as its worker counts it.
        """
        return sum(one.sampled + (one.most if one.is_open else 0) for one in self.trajectories.values())

    def of(self, ask: Ask) -> AskedTrajectory:
        """The trajectory of an ask, a new one if this is its first ask."""
        found = self.trajectories.get(ask.member)
        return found or AskedTrajectory(self.order, self.attempt, ask.is_trained)


@dataclass(slots=True)
class ToldAgent(Told):
    """Orders of an agent worker that it may still speak of."""

    begun: dict[Key, Begun] = field(default_factory=dict)
    called_off: dict[Key, int] = field(default_factory=dict)
    """Ended episodes with the number of the order that ended them, earliest first."""
    orders: int = 0

    def tell(self, message: Message, now: float) -> None:
        """Note an order: Begin, EndEpisodes or Turn."""
        self.orders += 1
        match message:
            case Turn():  # by far the most frequent order
                found = self.begun[message.group, message.episode, message.trial].trajectories[message.member]
                found.turns += 1
                found.order, found.attempt = self.orders, message.attempt
                count = sum(segment.count for segment in message.segments)
                found.length += count
                found.sampled += min(count, found.most)
            case Begin():
                self.begun[message.group, message.episode, message.trial] = _begun(message, self.orders)
            case EndEpisodes(episodes):
                for key in episodes:
                    if self.begun.pop(key, None) is not None:
                        self.called_off[key] = self.orders
            case _:
                pass

    def hear(self, message: Message, now: float) -> None:
        """Note a message: the worker has got the orders that it answers."""
        if not isinstance(message, Ask | EpisodeEnded | EpisodeFailed):
            return
        key = (message.group, message.episode, message.trial)
        found = self.begun.get(key)
        if found is None:
            return
        if isinstance(message, Ask):
            asked = found.trajectories[message.member] = found.of(message)
            asked.asks += 1
            asked.length += message.given
            asked.most = message.max_new_tokens
            found.order = max(found.order, asked.order)
        else:
            del self.begun[key]
        self._passed(found.order)

    def _passed(self, order: int) -> None:
        """The worker has got this order: it will not speak of episodes that earlier orders ended."""
        while self.called_off:
            first = next(iter(self.called_off))
            if self.called_off[first] > order:
                return
            del self.called_off[first]

    def could_begin(self, ask: Ask, limits: AskLimits) -> bool:
        """Whether an ask may begin a trajectory after others that are begun in the same turn of the host."""
        found = self.begun.get((ask.group, ask.episode, ask.trial))
        if found is None:
            return False
        place, rest = divmod(ask.member - ask.episode, found.episodes)
        is_new = not rest and len(found.trajectories) < place < limits.trajectories
        is_first = (ask.number, ask.keep, ask.attempt) == (0, 0, found.attempt + 1)
        return is_new and is_first and 0 < ask.given <= limits.tokens

    # -- contradictions ---------------------------------------------------------------------------------

    def contradiction(self, message: Message, limits: AskLimits) -> str | None:
        """Why an honest worker would not send this message; None if it might."""
        if not isinstance(message, Ask | EpisodeEnded | EpisodeFailed):
            return None
        key = (message.group, message.episode, message.trial)
        found = self.begun.get(key)
        if found is None:
            return (
                None
                if key in self.called_off
                else f"It spoke of {_words(key)}, which it was not given, or has ended."
            )
        if isinstance(message, Ask):
            return _of_ask(found, message, limits)
        return _of_end(found, message, limits) if isinstance(message, EpisodeEnded) else None


def _begun(begin: Begin, order: int) -> Begun:
    """An episode that begins from its start, or from a saved state."""
    trajectories = {
        begin.episode + place * begin.episodes: AskedTrajectory(
            order, one.attempt, one.is_trained, one.asks, one.asks, one.length
        )
        for place, one in enumerate(begin.restored)
    }
    return Begun(order, begin.attempt, begin.episodes, trajectories)


def _of_ask(begun: Begun, ask: Ask, limits: AskLimits) -> str | None:
    if problem := _of_member(begun, ask, limits) or _of_state(begun, ask, limits):
        return problem
    found = begun.of(ask)
    if ask.number != found.asks:
        return f"Its ask {ask.number} of {_here(ask)} came twice, or out of turn; expected ask {found.asks}."
    if found.is_open:
        return f"It asked twice for {_here(ask)} before the first was answered."
    if ask.is_trained != found.is_trained:
        which = f"trajectory {ask.group}.{ask.member}"
        return f"It asked for {_here(ask)} that {which} is trained, and that it is not."
    if ask.attempt != found.attempt + 1:
        return f"It gave tokens of {_here(ask)} the attempt {ask.attempt}; expected {found.attempt + 1}."
    if ask.keep != found.length:
        return f"It keeps {ask.keep} tokens of {_here(ask)}, whose trajectory has {found.length}."
    if begun.asks >= limits.turns:
        return f"It asked for turn {begun.asks + 1} of {_here(ask)}; agent.max_turns allows {limits.turns}."
    if not 1 <= ask.max_new_tokens <= limits.turn_tokens:
        return (
            f"It asked for a turn of {ask.max_new_tokens} tokens in {_here(ask)}; expected 1 to "
            f"{limits.turn_tokens} (agent.max_turn_tokens)."
        )
    if limits.sampled and begun.promised + ask.max_new_tokens > limits.sampled:
        return (
            f"It asked for {ask.max_new_tokens} tokens in {_here(ask)}, whose turns may have "
            f"{begun.promised} so far; expected at most {limits.sampled} in all (agent.max_sampled_tokens)."
        )
    tokens = ask.keep + ask.given + ask.max_new_tokens
    if not ask.given or tokens > limits.tokens:
        return (
            f"It gave {ask.given} tokens to {_here(ask)} behind {ask.keep}, for {ask.max_new_tokens} more; "
            f"expected 1 or more, and {limits.tokens} in all (agent.max_tokens)."
        )
    return None


def _of_member(begun: Begun, ask: Ask, limits: AskLimits) -> str | None:
    """What is wrong with the trajectory that an ask names."""
    if ask.cause and (ask.member in begun.trajectories or ask.member == ask.episode):
        which = f"trajectory {ask.group}.{ask.member}"
        return f"It told why {_here(ask)} forks, by an ask of {which}, which does not."
    if ask.member in begun.trajectories:
        return None
    count = len(begun.trajectories)
    expected = ask.episode + count * begun.episodes
    if ask.member != expected:
        others = f"{', '.join(map(str, begun.trajectories))} and next " if count else ""
        which = f"trajectory {ask.group}.{ask.member}"
        return f"It asked for {which} in {_here(ask)}, which has {others}{expected:d}."
    if count >= limits.trajectories:
        return (
            f"It asked for trajectory {count + 1} of {_here(ask)}; agent.max_trajectories allows "
            f"{limits.trajectories}."
        )
    return None


def _of_state(begun: Begun, ask: Ask, limits: AskLimits) -> str | None:
    """What is wrong with the state that is saved with an ask."""
    if ask.saved > limits.state_bytes:
        return (
            f"It saved {ask.saved} bytes of {_here(ask)}; agent.max_state_mb allows "
            f"{limits.state_bytes >> 20} MB."
        )
    if ask.saved and any(one.is_open for one in begun.trajectories.values()):
        return f"It saved the state of {_here(ask)} while another ask of it was open."
    return None


def _of_end(found: Begun, end: EpisodeEnded, limits: AskLimits) -> str | None:
    here = _words((end.group, end.episode, end.trial))
    turns = {member: one.turns for member, one in found.trajectories.items() if one.is_trained}
    if not any(turns.values()):
        return f"It ended {here} before a turn was sampled."
    if len(end.reward) > 1:
        return f"It gave {here} {len(end.reward)} rewards; expected one, or none."
    if end.earned == "turns" and not end.reward:
        return f"It said that the turns of {here} have earned its reward, and gave none."
    if end.earned == "scored" and end.reward:
        return f"It left the reward of {here} to the reward function, and gave one."
    if end.talk > limits.state_bytes or (end.talk and end.reward):
        return (
            f"It gave {end.talk} bytes of messages with {here} and {len(end.reward)} rewards; expected some "
            f"where there is none, of at most {limits.state_bytes >> 20} MB (agent.max_state_mb)."
        )
    numbers = [(member, number) for member, number, _ in end.turn_rewards]
    if len(set(numbers)) < len(numbers) or any(number >= turns.get(one, 0) for one, number in numbers):
        return f"It gave rewards to turns {numbers[:5]} of {here}, which has {turns}; one for each counts."
    if len(end.awaited) > sum(one.turns for one in found.trajectories.values()):
        return f"It told how long {len(end.awaited)} turns of {here} took, which has {turns}."
    for values in (end.parts, end.metrics):
        names = {name for name, _ in values}
        if len(names) < len(values) or len(names) > MAX_NAMES:
            return f"It named {len(values)} values of {here}; expected at most {MAX_NAMES}, each once."
    named = (value for _, value in (*end.parts, *end.metrics))
    awaited = (value for *_, value in end.awaited)
    rewards = (*end.reward, *(value for *_, value in end.turn_rewards), *named, *awaited)
    for reward in rewards:
        if not (isfinite(reward) and abs(reward) <= MAX_REWARD):
            return f"It gave {here} a value of {reward:g}; at most {MAX_REWARD:g} counts."
    return None


def _here(ask: Ask) -> str:
    return _words((ask.group, ask.episode, ask.trial))


def _words(key: Key) -> str:
    return f"episode {key[1]} of group {key[0]}, trial {key[2]}"
