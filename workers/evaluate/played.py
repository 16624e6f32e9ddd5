"""What one attempt at one row came to."""

from typing import Any, NamedTuple

from protocol.messages.pieces import ForkCause


class Played(NamedTuple):
    """One response, or one episode."""

    reward: float | None  # None: the reward function is to score it
    prompt: str
    prompt_ids: list[int]  # []: nobody but the endpoint knows
    completion: str  # the policy's last answer, in its first trajectory
    completion_ids: list[int]
    ending: str  # stop or length
    tokens: int  # that the policy has sampled
    turns: int
    transcript: Any  # text, or the messages
    talk: list[Any] | None = None  # the messages of its first conversation; None: it was held in none
    said: list[str] | None = None  # by the policy in its first conversation, turn by turn; None: no episode
    forks: tuple[ForkCause, ...] = ()  # why it has each further conversation that training would take
    overhead_ms: tuple[float, ...] = ()  # of each turn, beside the engine; where that is known


class Lost(Exception):
    """An attempt has failed, and the policy is not to blame; the text is for the user."""
