"""The policy as an agent's code sees it: answers questions, and takes rewards, metrics and logs.

Invariants: this module runs in the process of the user's code and knows neither the tokenizer nor the wire: a
`PolicyLine` brings every question to the worker; values from the user's code are checked before use.
"""

import copy
import math
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from protocol.messages import MAX_REWARD
from protocol.plain_text import plain
from protocol.rewards.scalars import plain_number
from workers.agent.saved_state import pack, unpack

MAX_METRICS = 64
OWN_METRICS = "forks/"  # names of metrics that are not the agent's begin with it
MAX_LOG_CHARS = 16_000  # of what an episode logs
CUT = "... (more than an episode may say)"
MOST = 2**31 - 1
"""Largest token id, or number of tokens, that the worker accepts."""
MAX_STATE_MB = 4  # by default
MODEL = "policy"
"""The name of the one model that clients find at the door."""
UNTRAINED = "/untrained"
"""Path of the door for requests that are not trained."""
KEYED = "/e"
"""Prefix of paths at the door that contain the key."""


class EnvironmentFailed(Exception):
    """Raised by an agent if the environment, not the policy, is to blame. The episode begins again."""


class BudgetExceeded(Exception):
    """A limit of the episode is reached: the policy answers no more. Rewards until then count."""

    def __init__(self, limit: str, words: str = "") -> None:
        super().__init__(words or f"The episode has reached its limit of {limit}.")
        self.limit = limit
        """`turns`, `tokens` or `context`."""


class EpisodeOver(Exception):
    """The episode has ended; nothing can be asked in it any more."""


@dataclass(frozen=True, slots=True)
class TurnOfTokens:
    """What the policy has sampled for `AgentPolicy.generate`."""

    token_ids: list[int]
    ending: str  # "stop" or "length"


class DoorAddress(NamedTuple):
    """The address at which clients of OpenAI's API find the policy of one episode."""

    base_url: str
    api_key: str
    request_kwargs: Mapping[str, Any] = MappingProxyType({})
    """Request fields that describe the run's sampling."""
    is_elsewhere: bool = False
    """Whether it is a foreign endpoint, with its own answer ids."""

    @property
    def with_key(self) -> str:
        """A URL for clients that send no key: chat completion paths are added, with or without `/v1`."""
        root = self.base_url.removesuffix("/v1")
        return root if self.is_elsewhere else f"{root}{KEYED}/{self.api_key}"

    @property
    def untrained(self) -> "DoorAddress":
        """The address for calls that are not trained."""
        return self._replace(base_url=f"{self.base_url.removesuffix('/v1')}{UNTRAINED}/v1")

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for OpenAI's clients; requests on this machine use no proxy."""
        known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        direct = ",".join(dict.fromkeys([*filter(None, known.split(",")), "127.0.0.1"]))
        return {
            "OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.api_key, "OPENAI_MODEL": MODEL,
            "no_proxy": direct, "NO_PROXY": direct,
        }  # fmt: skip


class PolicyLine(Protocol):
    """Sends questions to the worker."""

    def read_all(self) -> None:
        """Read all messages of the worker so far, among them turns that were asked for at the door."""
        ...

    async def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises: BudgetExceeded, EpisodeOver, ValueError."""
        ...


@dataclass(slots=True)
class Notes:
    """Everything that is noted about an episode."""

    rewards: dict[int, float] = field(default_factory=dict)
    """Rewards of turns, by their place in the episode from 0."""
    metrics: dict[str, float] = field(default_factory=dict)
    answered: list[int] = field(default_factory=list)
    """Places of answered turns in the order of asking; that of the newest answer comes last."""
    limit: str = ""  # that a request has reached; of several in a row the first
    has_gone_on: bool = False  # a turn was asked for since then, and answered
    refused: int = 0  # requests, because of a limit
    limit_at: int = 0  # turns that had been asked for when a client of the door reached it
    limit_words: str = ""  # its message, if the function got it
    is_limit_of_door: bool = False  # a client of the door was told of it, and may raise any error
    log: str = ""
    """The episode's log, a line each."""
    state: bytes | None = None  # for the next request to save
    completions: dict[str, int] = field(default_factory=dict)
    """The place of each answer of the door by its id; -1: not trained."""

    @property
    def turns(self) -> int:
        """The number of answered turns."""
        return len(self.answered)

    def count(self, place: int, limit: str = "", id: str = "") -> None:
        """Note the result of a request: the place of its turn (-1: not trained), or a limit.

        With a limit, which a client of the door was told: the number of turns asked for until then.
        """
        if limit:
            self.reach(limit)
            self.is_limit_of_door, self.limit_at = True, place
            return
        if place >= 0 and place not in self.answered:
            self.answered.append(place)
        if id:
            self.completions[id] = place
            self.has_gone_on |= self.is_limit_of_door and place >= self.limit_at

    def reach(self, limit: str, words: str = "") -> None:
        """Note that a request was refused because of a limit."""
        if not self.limit or self.has_gone_on:
            self.limit = limit
        self.limit_words = self.limit_words or words
        self.refused += 1
        self.has_gone_on = False

    @property
    def last_limit(self) -> str:
        """The limit that was reached, unless the agent has made room and gone on."""
        return "" if self.has_gone_on else self.limit

    def take_state(self) -> bytes | None:
        """The state for the next request, with all notes; None if there is nothing to save."""
        state, self.state = self.state, None
        if state is None:
            return None
        fields = {
            "rewards": [*self.rewards.items()], "metrics": self.metrics, "answered": self.answered,
            "limit": self.limit, "has_gone_on": self.has_gone_on, "log": self.log,
            "is_limit_of_door": self.is_limit_of_door, "completions": self.completions,
        }  # fmt: skip
        return pack(fields, state)

    def restore(self, packed: bytes) -> bytes:
        """Restore notes; returns the state."""
        fields, state = unpack(packed)
        self.rewards = dict(fields.pop("rewards"))
        self.answered = [*range(fields.pop("turns", 0))]  # in older states
        for name, value in fields.items():
            setattr(self, name, value)
        return state


class PolicyCalls:
    """The methods by which a policy is asked within one episode."""

    def __init__(
        self, line: PolicyLine, notes: Notes, door: DoorAddress | None, *, is_trained: bool = True
    ) -> None:
        self._line, self._door, self._is_trained = line, door, is_trained
        self.notes = notes
        self.model = MODEL

    @property
    def base_url(self) -> str:
        """The URL for any client of OpenAI's API. Raises: ValueError if there is no door."""
        return self._address.base_url

    @property
    def api_key(self) -> str:
        """The key of this episode, for the same clients. Raises: ValueError if there is no door."""
        return self._address.api_key

    @property
    def url_with_key(self) -> str:
        """A URL for clients that send no key: `/chat/completions` is added. Raises: as `base_url`."""
        return self._address.with_key

    @property
    def request_kwargs(self) -> dict[str, Any]:
        """The run's sampling, as fields of a request at the door. Raises: as `base_url`."""
        return copy.deepcopy(dict(self._address.request_kwargs))

    @property
    def environment(self) -> dict[str, str]:
        """URL and key as environment variables, for programs. Raises: ValueError if there is no door."""
        return self._address.environment

    @property
    def _address(self) -> DoorAddress:
        if self._door is None:
            raise ValueError(
                "policy.base_url and policy.api_key are for clients of the door: set `agent.door: true`."
            )
        return self._door

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        max_tokens: int | None = None,
    ) -> dict[str, Any]:
        """The answer, as a message of OpenAI's chat completions.

        Raises: BudgetExceeded if a limit is reached; ValueError if the messages cannot be answered.
        """
        answer = await self._ask({"chat": messages, "tools": tools}, max_tokens)
        return answer["message"]

    async def generate(self, token_ids: Sequence[int], max_tokens: int | None = None) -> TurnOfTokens:
        """Sample from the policy after these tokens, which are the whole context.

        Raises: BudgetExceeded if a limit is reached; ValueError if there are no tokens.
        """
        ids = [int(token) for token in token_ids]
        if bad := [token for token in ids if not 0 <= token <= MOST]:
            raise ValueError(f"policy.generate got the token id {bad[0]}; expected 0 or more, up to {MOST}.")
        answer = await self._ask({"tokens": ids}, max_tokens)
        return TurnOfTokens(answer["sampled"], answer["ending"])

    async def _ask(self, question: dict[str, Any], max_tokens: int | None) -> dict[str, Any]:
        if max_tokens is not None and (isinstance(max_tokens, bool) or not isinstance(max_tokens, int)):
            raise ValueError(f"`max_tokens` is {max_tokens!r:.40}; expected a whole number of at least 1.")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"`max_tokens` is {max_tokens}; expected at least 1.")
        refused = self.notes.refused
        try:
            untrained = {} if self._is_trained else {"is_untrained": True}
            most = None if max_tokens is None else min(max_tokens, MOST)
            state = self.notes.take_state()
            more = untrained | ({} if state is None else {"state": state})
            answer = await self._line.ask(question | more | {"max_tokens": most})
        except BudgetExceeded as error:
            self.notes.reach(error.limit, str(error))
            raise
        self.notes.count(answer.get("place", self.notes.turns) if self._is_trained else -1)
        self.notes.has_gone_on |= self._is_trained and refused == self.notes.refused
        return answer


class AgentPolicy(PolicyCalls):
    """One episode's policy."""

    def __init__(
        self, line: PolicyLine, *, seed: int, notes: Notes | None = None, door: DoorAddress | None = None,
        saved: bytes | None = None, max_state_mb: int = MAX_STATE_MB,
    ) -> None:  # fmt: skip
        super().__init__(line, notes or Notes(), door)
        self._max_state_mb = max_state_mb
        self.seed = seed
        """The same for all members of a group, so that their environments begin alike."""
        self.saved = saved
        """The argument of the last `save`, if this episode goes on from there; None if it begins."""
        self.untrained = PolicyCalls(line, self.notes, door and door.untrained, is_trained=False)
        """The same policy for calls outside the task, such as titles and summaries, which are not trained."""

    def save(self, state: bytes) -> None:
        """Save this state with the next `chat` or `generate`.

        If the process, the worker or the controller dies after that, the episode runs again with this state
        in `policy.saved`, and that request is its first. Raises: ValueError if it is not bytes, or too large.
        """
        if not isinstance(state, bytes):
            raise ValueError(f"policy.save got {state!r:.80} of type {type(state).__name__}; expected bytes.")
        if len(state) > self._max_state_mb << 20:
            raise ValueError(too_large(len(state), self._max_state_mb))
        self.notes.state = state

    def reward(self, value: float, turn: int | str = -1) -> None:
        """Add to the reward of a turn: of the last answer, or of the turn that `turn` names.

        `turn`: counted from 0 in the order of asking; or below 0, back from the newest answer, which is -1;
        or the id of an answer, as the door gave it. Raises: ValueError if the value is not a finite number,
        or no such turn was answered.
        """
        if self._door is not None:
            self._line.read_all()
        if isinstance(turn, str):
            turn = self._place_of(turn)
        answered = self.notes.answered
        place = answered[turn] if -len(answered) <= turn < 0 else turn
        if place not in answered:
            raise ValueError(
                f"policy.reward(..., turn={turn}): the episode has had {len(answered)} turns, and no answer "
                "to that one. Give the reward after the turn that it is for."
            )
        self.notes.rewards[place] = self.notes.rewards.get(place, 0.0) + finite(value, "policy.reward")

    @property
    def reached_limit(self) -> str:
        """The first limit that the episode has reached, as far as this process knows; "" if none."""
        if self._door is not None:
            self._line.read_all()
        return self.notes.limit

    def _place_of(self, id: str) -> int:
        """The turn of an answer of the door, by its id. Raises: ValueError."""
        if self._door is not None and self._door.is_elsewhere:
            return -1  # a foreign endpoint's id, of an answer that is not trained: only sums count
        place = self.notes.completions.get(id)
        if place is None:
            raise ValueError(
                f"No answer of this episode has the id {id!r:.80}; expected the `id` of a completion that "
                "the door gave in it."
            )
        if place < 0:
            raise ValueError(f"The answer {id!r:.80} came from {UNTRAINED}/v1, and is not trained.")
        return place

    def metric(self, name: str, value: float) -> None:
        """Note a metric; its mean over episodes is reported. Of several calls with one name the last counts.

        Raises: ValueError if it is not a number, or the name is not free.
        """
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 80:
            raise ValueError(
                f"policy.metric: the name is {name!r:.90}; expected 1 to 80 printable characters."
            )
        if name.startswith(OWN_METRICS):
            raise ValueError(f"policy.metric: the name is {name!r:.90}; the engine has such metrics.")
        if name not in self.notes.metrics and len(self.notes.metrics) >= MAX_METRICS:
            raise ValueError(
                f"policy.metric: {name!r} is one more than the {MAX_METRICS} that an episode has."
            )
        self.notes.metrics[name] = finite(value, "policy.metric")

    def log(self, text: object) -> None:
        """Add text to the episode's log, which `launch.py story` shows. Long logs are cut."""
        notes = self.notes
        if len(notes.log) < MAX_LOG_CHARS:
            notes.log += f"{plain(str(text))}\n"  # half a character could not be sent
            if len(notes.log) > MAX_LOG_CHARS:
                notes.log = notes.log[: MAX_LOG_CHARS - len(CUT)] + CUT


def too_large(size_bytes: int, max_mb: int) -> str:
    """The error message for a state that is too large."""
    return (
        f"The state of the episode has {size_bytes:,} bytes; agent.max_state_mb allows {max_mb} MB, of its "
        "conversations and what `save` gives. Save less, or raise it, to 16 at most."
    )


def finite(value: object, what: str) -> float:
    """The value as a finite number. Raises: ValueError with a message for the user."""
    value = plain_number(value)
    if isinstance(value, bool | numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) and abs(number) <= MAX_REWARD:
            return number
    raise ValueError(
        f"{what} got {value!r:.120} of type {type(value).__name__}; expected a finite number, of at most "
        f"{MAX_REWARD:g} in size."
    )
