"""One conversation of an episode as tokens, with its messages and the ends of its turns.

Invariant: sampled tokens stay as they were sampled: new tokens are appended, never rendered again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from workers.agent.messages import is_same, normal

Talk = Sequence[Mapping[str, Any]]
"""Messages as `normal` returns them."""


class TurnEnd(NamedTuple):
    """The position of a turn's end."""

    messages: int
    tokens: int


@dataclass(slots=True)
class Transcript:
    """One trajectory."""

    member: int
    attempt: int
    """The newest attempt, as in messages."""
    is_trained: bool = True
    tokens: list[int] = field(default_factory=list)
    """All tokens, given and sampled, including an open request's."""
    sampled: int = 0
    """The number of tokens in the newest turn."""
    opening: int = 0
    """The number of tokens that were given first."""
    asks: int = 0
    is_open: bool = False
    talk: list[dict[str, Any]] = field(default_factory=list)
    """The messages, as far as it was held in messages."""
    tools: Any = None
    ends: list[TurnEnd] = field(default_factory=list)
    """The ends of the turns in `talk`."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each of these turns."""

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> "Transcript":
        """A transcript from fields that were saved while no request was open."""
        talk = [
            message
            | ({"tool_calls": list(map(tuple, message["tool_calls"]))} if "tool_calls" in message else {})
            for message in saved["talk"]
        ]
        return cls(**{**saved, "talk": talk, "ends": [TurnEnd(*end) for end in saved["ends"]]})

    @property
    def fields(self) -> dict[str, Any]:
        """All fields in JSON types."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def open(self, given: Sequence[int]) -> None:
        """Open a request for another turn."""
        self.opening = self.opening or len(given)
        self.tokens += given
        self.asks += 1
        self.is_open = True

    def answered(self, sampled: Sequence[int]) -> None:
        """Add the sampled turn."""
        self.tokens += sampled
        self.sampled = len(sampled)
        self.is_open = False

    def held(self, messages: Talk, answer: Mapping[str, Any], tools: Any) -> None:
        """Set the messages of the last request and its answer."""
        self.talk, self.tools = [normal(message) for message in (*messages, answer)], tools
        self.ends.append(TurnEnd(len(self.talk), len(self.tokens)))
        self.lengths.append(self.sampled)

    def shared(self, talk: Talk) -> int:
        """The number of leading messages that both have in common."""
        pairs = list(zip(self.talk, talk, strict=False))
        return next((place for place, two in enumerate(pairs) if not is_same(*two)), len(pairs))

    def goes_on_as(self, talk: Talk, tools: Any) -> bool:
        """Whether these messages are all of the conversation, and more."""
        is_longer = len(talk) > len(self.talk) > 0
        return is_longer and self.is_told and tools == self.tools and self.shared(talk) == len(self.talk)

    @property
    def is_told(self) -> bool:
        """Whether its messages tell all of its tokens: `generate` may have gone on behind them."""
        return bool(self.ends) and self.ends[-1].tokens == len(self.tokens)

    def last_end(self, talk: Talk, tools: Any) -> TurnEnd:
        """The end of the last turn that these messages share with it, and continue."""
        most = min(self.shared(talk), len(talk) - 1) if tools == self.tools else 0
        return max((end for end in self.ends if end.messages <= most), default=TurnEnd(0, 0))

    def length_at(self, end: TurnEnd) -> int:
        """Tokens of the turn with this end."""
        return dict(zip(self.ends, self.lengths, strict=False)).get(end, 0)
