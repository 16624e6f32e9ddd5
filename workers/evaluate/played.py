"""The result of one attempt at one row."""

from typing import Any, NamedTuple

from protocol.messages.pieces import ForkCause


class Played(NamedTuple):
    """One response, or one episode."""

    reward: float | None  # None: the reward function has to score it
    prompt: str
    prompt_ids: list[int]  # []: only the endpoint knows them
    completion: str  # the policy's last answer, in its first trajectory
    completion_ids: list[int]
    ending: str  # stop or length
    tokens: int  # sampled by the policy, as far as training would use them
    turns: int  # of the policy, likewise
    transcript: Any  # text, or the messages
    talk: list[Any] | None = None  # the messages of its first conversation; None if held in tokens
    said: list[str] | None = None  # the policy's turns in its first conversation; None: no episode
    forks: tuple[ForkCause, ...] = ()  # why each further trained conversation began
    overhead_ms: tuple[float, ...] = ()  # of each turn, besides the engine; if known


class Lost(Exception):
    """An attempt has failed, and the policy is not to blame; the text is for the user."""
